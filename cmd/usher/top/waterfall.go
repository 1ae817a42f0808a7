package top

import "github.com/usherproxy/usher/cmd/usher/show"

// waterfallLines tell the connection that is looked at.
func (m Model) waterfallLines() []string {
	lines := show.Waterfall(m.shown, m.width)
	if m.gone {
		lines = append([]string{show.Care.Text("usher does not know this connection any more; this is what it last told."), ""}, lines...)
	}
	return lines
}
