package show

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/usherproxy/usher/proxy/trace"
)

// Milliseconds returns "0.24 ms", "253 ms", "1.5 s".
func Milliseconds(ms float64) string {
	return trace.Short(time.Duration(ms * float64(time.Millisecond)))
}

// Seconds returns "7s", "3m7s", "2h58m", rounded to seconds or, from one hour on, to minutes.
func Seconds(s float64) string {
	d := time.Duration(s * float64(time.Second)).Round(time.Second)
	if d >= time.Hour {
		d = d.Round(time.Minute)
		if d%time.Hour == 0 {
			return fmt.Sprintf("%dh", d/time.Hour)
		}
		return strings.TrimSuffix(d.String(), "0s")
	}
	return d.String()
}

// Bytes returns "73 B", "1.3 kB", "20 MB".
func Bytes(n float64) string {
	for _, unit := range []string{"B", "kB", "MB", "GB", "TB"} {
		switch {
		case n < 9.95 && unit != "B":
			return fmt.Sprintf("%.1f %s", n, unit)
		case n < 999.5:
			return fmt.Sprintf("%.0f %s", n, unit)
		}
		n /= 1000
	}
	return fmt.Sprintf("%.0f PB", n)
}

// Rate returns a rate per second: "0", "0.3", "12".
func Rate(n float64) string {
	switch {
	case n == 0:
		return "0"
	case n < 9.95:
		return fmt.Sprintf("%.1f", n)
	}
	return fmt.Sprintf("%.0f", n)
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// dash returns the cleaned text of a cell, "-" if it is empty.
func dash(s string) string { return cmp.Or(Clean(s), "-") }

// orDash formats an amount; 0 is "-".
func orDash(n float64, format func(float64) string) string {
	if n == 0 {
		return "-"
	}
	return format(n)
}

// Few joins the first three of list, cleaned, and adds the number of the others.
func Few(list []string) string {
	const some = 3
	if len(list) <= some {
		return Clean(strings.Join(list, ", "))
	}
	return fmt.Sprintf("%s and %d more", Clean(strings.Join(list[:some], ", ")), len(list)-some)
}

// Plural returns "1 thing" or "n things".
func Plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// Since returns t as the local time of day or, if it is at least a day before now, as date, hour and minute. For the
// zero time, it returns "-".
func Since(t, now time.Time) string {
	switch {
	case t.IsZero():
		return "-"
	case now.Sub(t) < 24*time.Hour:
		return t.Local().Format(time.TimeOnly)
	}
	return t.Local().Format("2006-01-02 15:04")
}
