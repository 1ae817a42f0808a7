package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// shown are the quantities in the order in which they are printed.
var shown = []Quantity{Due, Rate, Gbits, P50, P99, P999, CPU, Resident, Descriptors, System, Lost, Errors,
	ResidentStart, ResidentFirst, ResidentEnd, DescriptorsStart, DescriptorsEnd, Start, Memory, Change, FirstRate, LastRate, LastFirst, Rest}

// Line formats one measurement as a line.
func Line(r Result) string {
	parts := []string{fmt.Sprintf("round %d  %-8s  %-16s", r.Round, r.Figure, r.Peer)}
	for _, q := range shown {
		if v, ok := r.Values[q]; ok && (v != 0 || q != Lost && q != Errors) {
			parts = append(parts, fmt.Sprintf("%s %s", q, number(v)))
		}
	}
	if r.Failed != "" {
		parts = append(parts, "FAILED: "+r.Failed)
	}
	return strings.Join(parts, "  ")
}

// number formats v with three or four significant digits.
func number(v float64) string {
	switch {
	case v >= 10_000:
		return thousands(int64(math.Round(v)))
	case v >= 100 || v <= -100 || v == float64(int(v)):
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// thousands writes n with a comma before every three digits.
func thousands(n int64) string {
	s := fmt.Sprint(n)
	for at := len(s) - 3; at > 0; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}

// bases are the peers that the others are compared with.
var bases = []string{"haproxy", "nginx", "dnat", ceiling}

// Summary formats, for every quantity, the medians and the medians of the ratios.
func Summary(r Results) string {
	r = r.withCeiling()
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "FIGURE\tPEER\tQUANTITY\tMEDIAN\tMIN–MAX")
	for _, base := range bases {
		fmt.Fprintf(w, "\t/ %s", strings.ToUpper(base))
	}
	fmt.Fprintln(w)
	for _, at := range r.places() {
		for _, q := range shown {
			s := r.Over(at.figure, at.peer, q)
			if s.Rounds == 0 || (q == Errors || q == Lost) && s.Max == 0 {
				continue
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s–%s", at.figure, at.peer, q, number(s.Median), number(s.Min), number(s.Max))
			for _, base := range bases {
				fmt.Fprintf(w, "\t%s", ratio(r.Ratio(at.figure, at.peer, base, q), base == at.peer, true))
			}
			fmt.Fprintln(w)
		}
	}
	w.Flush()
	return b.String()
}

// ratio formats a median of ratios, with the minimum and maximum if spread is set.
func ratio(s Spread, itself, spread bool) string {
	if s.Rounds == 0 || itself {
		return ""
	}
	if !spread || s.Rounds == 1 {
		return fmt.Sprintf("%.2f", s.Median)
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", s.Median, s.Min, s.Max)
}

type place struct{ figure, peer string }

// places returns the figures and peers that have results: figure by figure, in the order of measurement.
func (r Results) places() (all []place) {
	var figures []string
	for _, m := range r {
		if !slices.Contains(figures, m.Figure) {
			figures = append(figures, m.Figure)
		}
		if p := (place{m.Figure, m.Peer}); !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	slices.SortStableFunc(all, func(a, b place) int {
		return slices.Index(figures, a.figure) - slices.Index(figures, b.figure)
	})
	return all
}
