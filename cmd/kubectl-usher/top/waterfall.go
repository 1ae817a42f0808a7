package top

import (
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/usherproxy/usher/cmd/internal/show"
)

// waterfallLines returns the waterfall of the shown connection. Nothing is cut, since the user can scroll.
func (m Model) waterfallLines() []string {
	lines := show.Waterfall(m.shown, m.width)
	if m.gone {
		lines = append([]string{show.Care.Text("usher no longer keeps this connection; showing its last known state."), ""}, lines...)
	}
	return strings.Split(ansi.Wrap(strings.Join(lines, "\n"), m.width, ""), "\n")
}
