package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hinshun/vt10x"
)

// Sizes in the picture, in CSS pixels. A monospaced font's characters are 0.6 times as wide as the
// font is high, or are made so.
const (
	fontSize   = 14
	cellWidth  = 8.4
	cellHeight = 18
	margin     = 14
)

const (
	// frame is how long the screen is seen at least as it is: what comes within it comes at once.
	frame = 40 * time.Millisecond
	// hold is how long the last screen is seen before all begins again.
	hold = 4 * time.Second
)

// style is the picture's, in colours that are readable on their ground: the sixteen of a terminal,
// of which some are alike, in a light and a dark picture.
const style = `svg{--bg:#fff;--fg:#1f2328;--c0:#1f2328;--c1:#b3202a;--c2:#116329;--c3:#7d4e00;--c4:#0550ae;--c5:#8250df;--c6:#0b6470;--c7:#57606a}
@media(prefers-color-scheme:dark){svg{--bg:#0d1117;--fg:#e6edf3;--c0:#8b949e;--c1:#ff7b72;--c2:#56d364;--c3:#e3b341;--c4:#79c0ff;--c5:#d2a8ff;--c6:#56d4dd;--c7:#b1bac4}}
text{font:%dpx ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:var(--fg);white-space:pre}
g{opacity:0;animation-duration:%dms;animation-iteration-count:infinite;animation-timing-function:step-end}
g.end{opacity:1}
.b{font-weight:bold}
@media(prefers-reduced-motion:reduce){g{animation:none!important}}
`

// lasting is a row of the screen for as long as it stays as it is.
type lasting struct {
	row      int
	cells    []vt10x.Glyph
	from, to time.Duration
}

// svg returns a picture that moves. A row is drawn once for as long as it is seen; whoever does not
// want motion, or cannot have it, gets the last screen.
func (c *cast) svg() ([]byte, error) {
	lines, length := c.lines()
	var b bytes.Buffer
	width, height := 2*margin+float64(c.header.Width)*cellWidth, 2*margin+c.header.Height*cellHeight
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %d" width="%g" height="%d" role="img" aria-label="A recording of usher demo">`+"\n<style>\n", width, height, width, height)
	fmt.Fprintf(&b, style, fontSize, length.Milliseconds())
	for i := range 8 {
		fmt.Fprintf(&b, ".c%d{fill:var(--c%d)}", i, i)
	}
	// Rows that come and go together are one group.
	type span struct{ from, to time.Duration }
	var spans []span
	groups := map[span][]lasting{}
	for _, l := range lines {
		s := span{l.from, l.to}
		if groups[s] == nil {
			spans = append(spans, s)
		}
		groups[s] = append(groups[s], l)
	}
	percent := func(at time.Duration) string { return fmt.Sprintf("%.3f%%", 100*float64(at)/float64(length)) }
	for i, s := range spans {
		end := ""
		if s.to < length {
			end = percent(s.to) + "{opacity:0}"
		}
		fmt.Fprintf(&b, "\n@keyframes k%d{0%%{opacity:0}%s{opacity:1}%s}", i, percent(s.from), end)
	}
	b.WriteString("\n</style>\n")
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" rx="8" style="fill:var(--bg);stroke:var(--c7)"/>`+"\n")
	for i, s := range spans {
		class := ""
		if s.to == length {
			class = ` class="end"`
		}
		fmt.Fprintf(&b, `<g%s style="animation-name:k%d">`, class, i)
		for _, l := range groups[s] {
			if err := l.draw(&b); err != nil {
				return nil, err
			}
		}
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.Bytes(), nil
}

// lines plays the cast, and returns what is seen of it, and how long it is.
func (c *cast) lines() (all []lasting, length time.Duration) {
	screen := vt10x.New(vt10x.WithSize(c.header.Width, c.header.Height))
	now := make([]lasting, c.header.Height)
	look := func(at time.Duration) {
		for y := range now {
			cells := make([]vt10x.Glyph, c.header.Width)
			for x := range cells {
				cells[x] = screen.Cell(x, y)
			}
			if old := now[y]; !slices.Equal(old.cells, cells) {
				if old.to = at; old.shows() && old.from < at {
					all = append(all, old)
				}
				now[y] = lasting{row: y, cells: cells, from: at}
			}
		}
	}
	for i, e := range c.events {
		if e.kind == output {
			_, _ = screen.Write([]byte(e.data)) // draws, and cannot fail
		}
		if i+1 == len(c.events) || c.events[i+1].at-e.at >= frame {
			look(e.at)
			length = e.at + hold
		}
	}
	for _, old := range now {
		if old.to = length; old.shows() {
			all = append(all, old)
		}
	}
	return all, length
}

// shows reports whether there is anything to see.
func (l lasting) shows() bool {
	return slices.ContainsFunc(l.cells, func(g vt10x.Glyph) bool { return !blank(g) })
}

func blank(g vt10x.Glyph) bool { return g.Char == 0 || g.Char == ' ' }

// vt10x does not export this bit of [vt10x.Glyph.Mode].
const bold = 1 << 2

// look is how a character looks.
func look(g vt10x.Glyph) (class string) {
	var classes []string
	if g.FG < 16 {
		classes = append(classes, fmt.Sprint("c", g.FG%8))
	}
	if g.Mode&bold != 0 {
		classes = append(classes, "b")
	}
	return strings.Join(classes, " ")
}

// draw draws a row: a text for what is alike in looks and stands together.
func (l lasting) draw(b *bytes.Buffer) error {
	for at := 0; at < len(l.cells); {
		if blank(l.cells[at]) {
			at++
			continue
		}
		var text strings.Builder
		begin, class := at, look(l.cells[at])
		for ; at < len(l.cells); at++ {
			// A single blank does not part words, two do.
			if blank(l.cells[at]) && (at+1 == len(l.cells) || blank(l.cells[at+1])) || !blank(l.cells[at]) && look(l.cells[at]) != class {
				break
			}
			char := l.cells[at].Char
			if blank(l.cells[at]) {
				char = ' '
			}
			text.WriteRune(char)
		}
		said := strings.TrimRight(text.String(), " ")
		if class != "" {
			class = fmt.Sprintf(` class="%s"`, class)
		}
		fmt.Fprintf(b, `<text x="%.1f" y="%d" textLength="%.1f" lengthAdjust="spacingAndGlyphs"%s>`,
			margin+float64(begin)*cellWidth, margin+l.row*cellHeight+fontSize, float64(len([]rune(said)))*cellWidth, class)
		if err := xml.EscapeText(b, []byte(said)); err != nil {
			return err
		}
		b.WriteString("</text>")
	}
	return nil
}
