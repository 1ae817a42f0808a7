package show

import (
	"io"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// Column is a column of a table of Ts.
type Column[T any] struct {
	Title string
	Cell  func(T) string
	Right bool // numbers are easier to compare when they end in one line
	Wide  bool // only in wide tables
}

// gap is what is between two columns.
const gap = "  "

// Table writes rows under the columns' titles.
func Table[T any](out io.Writer, columns []Column[T], rows []T, wide bool) error {
	if !wide {
		columns = Narrow(columns)
	}
	var b strings.Builder
	for _, line := range Lines(columns, rows) {
		b.WriteString(line)
		b.WriteByte('\n')
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// Narrow returns the columns that are not only for wide tables.
func Narrow[T any](columns []Column[T]) (out []Column[T]) {
	for _, c := range columns {
		if !c.Wide {
			out = append(out, c)
		}
	}
	return out
}

// Lines lays a table out: the titles, and a line for each row. No line ends in
// blanks.
func Lines[T any](columns []Column[T], rows []T) []string {
	cells := make([][]string, 1+len(rows))
	widths := make([]int, len(columns))
	for i := range cells {
		cells[i] = make([]string, len(columns))
		for j, c := range columns {
			text := c.Title
			if i > 0 {
				text = c.Cell(rows[i-1])
			}
			cells[i][j] = text
			widths[j] = max(widths[j], ansi.StringWidth(text))
		}
	}
	lines := make([]string, len(cells))
	for i, row := range cells {
		var b strings.Builder
		for j, text := range row {
			if j > 0 {
				b.WriteString(gap)
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

// Fit returns the first of the columns whose table of rows is no wider than width,
// and at least one of them.
func Fit[T any](columns []Column[T], rows []T, width int) []Column[T] {
	for len(columns) > 1 {
		widest := 0
		for _, line := range Lines(columns, rows) {
			widest = max(widest, ansi.StringWidth(line))
		}
		if widest <= width {
			break
		}
		columns = columns[:len(columns)-1]
	}
	return columns
}
