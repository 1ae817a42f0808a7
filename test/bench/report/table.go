package report

import "strings"

// table is a Markdown table.
type table struct {
	head []string
	rows [][]string
}

func (t table) String() string {
	var b strings.Builder
	line := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(t.head)
	rule := []string{"---"}
	for range t.head[1:] {
		rule = append(rule, "---:")
	}
	line(rule)
	for _, row := range t.rows {
		line(row)
	}
	return b.String()
}
