package show

import (
	"cmp"
	"slices"

	"github.com/charmbracelet/x/ansi"
)

// Need says how much room a column needs: for its widest cell, and at least (0 is as
// much). See Column.Rank.
type Need struct{ Most, Least, Rank int }

func (n Need) least() int {
	if n.Least == 0 {
		return n.Most
	}
	return min(n.Least, n.Most)
}

// leftOut is the width of a column that there is no room for.
const leftOut = -1

// Widths returns how wide each column is in a table of width cells, and -1 for those that
// are left out: there was no room for them beside those of a lower rank. One column is always
// there.
func Widths(needs []Need, width int) []int {
	widths, order := make([]int, len(needs)), make([]int, len(needs))
	for i := range needs {
		widths[i], order[i] = leftOut, i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(needs[a].Rank, needs[b].Rank) })
	room := width + len(gap) // each column has a gap, but for the last
	for n, i := range order {
		if takes := needs[i].least() + len(gap); takes <= room || n == 0 {
			widths[i] = needs[i].least()
			room -= takes
		}
	}
	// What is left over goes to the names, evenly.
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

// Middle returns a name in at most width cells: what is in its middle gives way to "…".
func Middle(s string, width int) string {
	over := ansi.StringWidth(s) - width
	if over <= 0 {
		return s
	}
	end := ansi.TruncateLeft(s, width+over-(width-1)/2, "")
	return ansi.Truncate(s, max(0, width-1-ansi.StringWidth(end)), "") + "…" + end
}
