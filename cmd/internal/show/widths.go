package show

import (
	"cmp"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// Need is the width that a column needs: Most for its widest cell, at least Least (0 means Most). Rank is that of
// Column.
type Need struct{ Most, Least, Rank int }

func (n Need) least() int {
	if n.Least == 0 {
		return n.Most
	}
	return min(n.Least, n.Most)
}

// leftOut is the width of an omitted column.
const leftOut = -1

// Widths returns the width of each column in a table of this width. It is -1 for columns that do not fit alongside
// those of lower rank. One column is always shown.
func Widths(needs []Need, width int) []int {
	widths, order := make([]int, len(needs)), make([]int, len(needs))
	for i := range needs {
		widths[i], order[i] = leftOut, i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(needs[a].Rank, needs[b].Rank) })
	room := width + len(gap) // each column has a gap, except the last
	for n, i := range order {
		if takes := needs[i].least() + len(gap); takes <= room || n == 0 {
			widths[i] = needs[i].least()
			room -= takes
		}
	}
	// Distribute the remaining width evenly to columns below their Most.
	for grown := true; grown; {
		grown = false
		for i, n := range needs {
			if room > 0 && widths[i] != leftOut && widths[i] < n.Most {
				widths[i]++
				room--
				grown = true
			}
		}
	}
	return widths
}

// Middle shortens a name to at most width columns: "…" replaces its middle.
func Middle(s string, width int) string {
	over := ansi.StringWidth(s) - width
	if over <= 0 {
		return s
	}
	end := ansi.TruncateLeft(s, width+over-(width-1)/2, "")
	return ansi.Truncate(s, max(0, width-1-ansi.StringWidth(end)), "") + "…" + end
}

// Fill breaks text into lines of at most width columns, between words only, unlike ansi.Wordwrap, which also breaks at
// hyphens. Longer words are lines of their own. The result has at least one line.
func Fill(text string, width int) []string {
	lines := []string{""}
	for _, word := range strings.Fields(text) {
		switch line := &lines[len(lines)-1]; {
		case *line == "":
			*line = word
		case ansi.StringWidth(*line)+1+ansi.StringWidth(word) <= width:
			*line += " " + word
		default:
			lines = append(lines, word)
		}
	}
	return lines
}
