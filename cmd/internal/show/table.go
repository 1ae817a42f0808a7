package show

import (
	"io"
	"math"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// Column is a column of a table of Ts.
type Column[T any] struct {
	Title string
	Cell  func(T) string
	Right bool // numbers are easier to compare when they end in one line
	Wide  bool // only in wide tables
	Some  bool // only if there is anything in it

	// Of a table that has to fit: columns of a low rank are there before those of a higher
	// one, and of equal ones the first. Least is to how few cells a name may give way; 0 is
	// not at all. A text gives way at its end instead of in its middle.
	Rank, Least int
	Text        bool
}

// gap is what is between two columns.
const gap = "  "

// Unlimited is the width of a table that has room for everything.
const Unlimited = math.MaxInt32

// Table writes rows under the columns' titles, in lines no wider than width.
func Table[T any](out io.Writer, columns []Column[T], rows []T, wide bool, width int) error {
	var b strings.Builder
	for _, line := range Fit(Shown(columns, rows, wide), rows, width) {
		b.WriteString(line)
		b.WriteByte('\n')
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// Shown returns the columns that a table of rows has.
func Shown[T any](columns []Column[T], rows []T, wide bool) []Column[T] {
	return slices.DeleteFunc(slices.Clone(columns), func(c Column[T]) bool {
		return c.Wide && !wide || c.Some && !slices.ContainsFunc(rows, func(row T) bool { return strings.Trim(c.Cell(row), "-0") != "" })
	})
}

// Lines lays a table out: the titles, and a line for each row. No line ends in
// blanks.
func Lines[T any](columns []Column[T], rows []T) []string { return Fit(columns, rows, Unlimited) }

// Fit lays a table out like Lines, in lines no wider than width: names give way in
// their middle, texts at their end, and columns that there is no room for are left out.
func Fit[T any](columns []Column[T], rows []T, width int) []string {
	cells := make([][]string, 1+len(rows))
	needs := make([]Need, len(columns))
	for i := range cells {
		cells[i] = make([]string, len(columns))
		for j, c := range columns {
			text := c.Title
			if i > 0 {
				text = c.Cell(rows[i-1])
			}
			cells[i][j] = text
			needs[j].Most = max(needs[j].Most, ansi.StringWidth(text))
			needs[j].Least, needs[j].Rank = c.Least, c.Rank
		}
	}
	widths := Widths(needs, width)
	lines := make([]string, len(cells))
	for i, row := range cells {
		var b strings.Builder
		between := ""
		for j, text := range row {
			if widths[j] == leftOut {
				continue
			}
			b.WriteString(between)
			between = gap
			if columns[j].Text {
				text = ansi.Truncate(text, widths[j], "…")
			} else {
				text = Middle(text, widths[j])
			}
			pad := strings.Repeat(" ", widths[j]-ansi.StringWidth(text))
			if columns[j].Right {
				b.WriteString(pad + text)
			} else {
				b.WriteString(text + pad)
			}
		}
		lines[i] = strings.TrimRight(b.String(), " ")
	}
	return lines
}
