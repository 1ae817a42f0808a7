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
	Right bool // align right, for numbers
	Wide  bool // only in wide tables
	Some  bool // only if a cell is not empty, "-" or "0"

	// If the width is limited, columns of lower Rank take precedence, and among equals the first one. Least is the
	// minimum width to which cells may be shortened; 0 means not at all. Cells are shortened in their middle, or at
	// their end with Text.
	Rank, Least int
	Text        bool
}

// gap separates two columns.
const gap = "  "

// Unlimited is the width of a table in which everything fits.
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

// Shown returns the columns to show for rows.
func Shown[T any](columns []Column[T], rows []T, wide bool) []Column[T] {
	return slices.DeleteFunc(slices.Clone(columns), func(c Column[T]) bool {
		return c.Wide && !wide || c.Some && !slices.ContainsFunc(rows, func(row T) bool { return strings.Trim(c.Cell(row), "-0") != "" })
	})
}

// Lines formats a table: the titles, and a line for each row. No line ends in blanks.
func Lines[T any](columns []Column[T], rows []T) []string { return Fit(columns, rows, Unlimited) }

// Fit formats a table like Lines, in lines no wider than width. It shortens cells, and omits columns that do not fit;
// see Column.
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
