package report

import (
	"fmt"
	"html"
	"strings"
)

// Plots returns the plots as SVG, by section name, for each section that has results. Peers that have no values to
// show, such as DNAT if a process is measured, are left out.
func Plots(r Results) map[string]string {
	r = r.withCeiling()
	all := map[string]string{}
	for _, s := range sections {
		var peers []string
		for _, p := range s.peers(r) {
			if r.Over(s.figure, p, s.main().quantity).Rounds > 0 {
				peers = append(peers, p)
			}
		}
		if len(peers) > 0 {
			all[s.name] = r.plot(s, peers)
		}
	}
	return all
}

// Sizes in a plot, in pixels.
const (
	plotWidth = 720
	barLeft   = 200 // names are left of it
	barRight  = 560 // figures are right of it
	barHeight = 18
	rowHeight = 28
	headerEnd = 44
)

// style sets its own background, so that the text is readable wherever the image is shown, and dark colors if the
// reader prefers them.
const style = `<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .title { font-weight: 600; font-size: 14px } .small { fill: #59636e }
.back { fill: #f6f8fa } .bound { fill: #afb8c1 } .other { fill: #6e8fb8 } .usher { fill: #1a7f64 } .range { stroke: #1f2328 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9198a1 }
.back { fill: #161b22 } .bound { fill: #484f58 } .other { fill: #4d6f99 } .usher { fill: #2ea583 } .range { stroke: #e6edf3 }
}
</style>
`

// plot draws a bar for each peer's median, with a line from the minimum to the maximum.
func (r Results) plot(s section, peers []string) string {
	c := s.main()
	full := r.greatest(s.figure, c.quantity)
	height := headerEnd + rowHeight*len(peers) + 12
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`+"\n",
		plotWidth, height, plotWidth, height, html.EscapeString(s.title+": "+c.heading))
	b.WriteString(style)
	fmt.Fprintf(&b, `<rect class="back" width="%d" height="%d" rx="6"/>`+"\n", plotWidth, height)
	fmt.Fprintf(&b, `<text class="title" x="16" y="26">%s <tspan class="small">%s</tspan></text>`+"\n", html.EscapeString(s.title), html.EscapeString(c.heading+better(c.quantity)))
	for i, p := range peers {
		b.WriteString(bar(title(p), kindOf(p), r.Over(s.figure, p, c.quantity), c.scale, full, headerEnd+i*rowHeight))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// better returns a note if lower values are better.
func better(q Quantity) string {
	if q == Rate || q == Gbits {
		return ""
	}
	return " (less is better)"
}

// bar draws one peer's row at height y.
func bar(name, kind string, s Spread, scale, full float64, y int) string {
	place := func(v float64) float64 { return barLeft + (barRight-barLeft)*max(v, 0)/max(full, 1e-9) }
	base := y + barHeight - 4 // of the text
	middle := y + barHeight/2
	return fmt.Sprintf(`<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", barLeft-10, base, html.EscapeString(strings.Trim(name, "*"))) +
		fmt.Sprintf(`<rect class="%s" x="%d" y="%d" width="%.1f" height="%d" rx="2"/>`+"\n", kind, barLeft, y, place(s.Median)-barLeft, barHeight) +
		fmt.Sprintf(`<line class="range" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`+"\n", place(s.Min), middle, place(s.Max), middle) +
		fmt.Sprintf(`<text x="%d" y="%d">%s</text>`+"\n", barRight+10, base, html.EscapeString(cell(s, scale, true)))
}

// kindOf returns the CSS class of a peer's bar.
func kindOf(peer string) string {
	switch {
	case strings.HasPrefix(peer, "usher-"):
		return "usher"
	case peer == "direct" || peer == ceiling || peer == "dnat":
		return "bound"
	}
	return "other"
}
