package trace

import (
	"fmt"
	"strings"
	"time"

	"github.com/usherproxy/usher/config"
)

// String tells the event in one line, without the time.
func (e Event) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "#%d %s ", e.Conn, e.Port)
	switch e.Kind {
	case Accepted:
		fmt.Fprintf(&b, "accepted %s → %s", e.Client, e.VIP)
	case Attempt:
		fmt.Fprintf(&b, "attempt %d → %s%s (%s%s): ", e.Attempt, e.Endpoint, pod(e.Pod), e.Reason, passedOver(e.PassedOver))
		switch {
		case e.Err == "" && e.Protocol == config.UDP:
			fmt.Fprintf(&b, "answered in %s", Short(e.Took))
		case e.Err == "":
			fmt.Fprintf(&b, "connected in %s", Short(e.Took))
		default:
			fmt.Fprintf(&b, "%s after %s", e.Err, Short(e.Took))
		}
	case Waiting:
		fmt.Fprintf(&b, "nobody else to try; waiting %s", Short(e.Took))
	case Established:
		fmt.Fprintf(&b, "established with %s%s", e.Endpoint, pod(e.Pod))
	case Closed:
		fmt.Fprintf(&b, "closed after %s: %s", Short(e.Took), e.End)
		if e.Endpoint.IsValid() {
			fmt.Fprintf(&b, ", %d bytes to %s, %d bytes to the client", e.ToEndpoint, e.Endpoint, e.ToClient)
		}
		if e.Err != "" {
			fmt.Fprintf(&b, " (%s)", e.Err)
		}
	default:
		b.WriteString(e.Kind.String())
	}
	return b.String()
}

func pod(name string) string {
	if name == "" {
		return ""
	}
	return " " + name
}

func passedOver(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", %d passed over in quarantine", n)
}

// Short rounds d to what a person wants to read: "0.24 ms", "253 ms", "1.5 s".
func Short(d time.Duration) string {
	switch ms := float64(d) / float64(time.Millisecond); {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2f ms", ms)
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", ms)
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}
