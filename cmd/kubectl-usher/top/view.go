package top

import (
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// The smallest supported terminal.
const minWidth, minHeight = 24, 6

// headLines and footLines are the numbers of lines above and below the body.
const headLines, footLines = 3, 1

// View implements tea.Model.
func (m Model) View() tea.View {
	v := tea.NewView(strings.Join(m.Lines(), "\n"))
	v.AltScreen = true
	v.WindowTitle = "usher top"
	return v
}

// Lines returns the display, at most one string for each line of the terminal.
func (m Model) Lines() []string {
	if m.width < minWidth || m.height < minHeight {
		return []string{ansi.Truncate("too small", m.width, "")}
	}
	lines := append(m.head(), m.body()...)
	for len(lines) < m.height-footLines {
		lines = append(lines, "")
	}
	lines = append(lines[:m.height-footLines], m.foot())
	for i, line := range lines {
		lines[i] = ansi.Truncate(line, m.width, "…")
	}
	return lines
}

func (m Model) bodyHeight() int { return max(1, m.height-headLines-footLines) }

// listHeight returns the number of lines for a list, below the titles.
func (m Model) listHeight() int { return max(1, m.bodyHeight()-1) }

// head returns headLines lines about the whole proxy and the current screen.
func (m Model) head() []string {
	s, r := m.status, m.rates.all
	first := show.Title.Text("usher "+show.Clean(s.Version)) + "  portal " + show.Clean(s.PortalMode)
	if s.Demo {
		first += "  demo"
	}
	if !s.Started.IsZero() {
		first += "  up " + show.Seconds(s.Now.Sub(s.Started).Seconds())
	}
	switch {
	case m.err != nil:
		first += "  " + show.Alarm.Text(m.lost())
	case m.paused:
		first += "  " + show.Care.Text("paused, p resumes")
	}
	problems := "no problems"
	if n := len(s.Problems) + s.ProblemsOmitted; n > 0 {
		problems = show.Plural(n, "problem")
		first += "  " + show.Care.Text(show.Clean(s.Attention))
	}
	second := []string{
		fmt.Sprintf("%d Services, %s", s.Services, problems),
		show.Rate(r.accepted) + "/s new", show.Rate(r.failed) + "/s failed", show.Rate(r.retries) + "/s retries",
		fmt.Sprintf("connections %d of %d", s.Connections.Now, s.Connections.Limit),
	}
	if s.UDPSessions.Now > 0 {
		second = append(second, fmt.Sprintf("UDP sessions %d", s.UDPSessions.Now))
	}
	return []string{first, asMany(second, m.width), show.Note.Text(m.where())}
}

// asMany joins as many words as fit into width, so that no number is cut.
func asMany(words []string, width int) string {
	line := words[0]
	for _, w := range words[1:] {
		if len(line)+len("  ")+len(w) > width {
			break
		}
		line += "  " + w
	}
	return line
}

// lost describes for how long usher has not responded, and why.
func (m Model) lost() string {
	if m.seen.IsZero() {
		return "no answer: " + client.Cause(m.err)
	}
	return fmt.Sprintf("no answer since %s: %s", m.seen.Format(time.TimeOnly), client.Cause(m.err))
}

// where describes the current screen. It shortens a name that does not fit.
func (m Model) where() string {
	if m.screen == waterfall {
		return fmt.Sprintf("Connection #%d", m.shown.ID)
	}
	what, of, name := "Services", " of namespace ", m.namespace
	order := serviceSorts[m.serviceSort].name + firstOf(len(m.services), m.total)
	if m.screen == connections {
		what, of, name = "Connections", " of ", m.service
		order = connectionSorts[m.connectionSort].name + firstOf(len(m.connections), m.total)
	}
	if name != "" {
		what += of
	}
	filter := ""
	if m.filter != "" || m.typing {
		filter = ", with “" + show.Clean(m.filter)
		if m.typing {
			filter += "▏"
		}
		filter += "”"
	}
	rest := filter + ", " + order
	return what + show.Middle(show.Clean(name), max(10, m.width-ansi.StringWidth(what+rest))) + rest
}

// firstOf reports that a list is incomplete.
func firstOf(shown, total int) string {
	if shown >= total {
		return ""
	}
	return fmt.Sprintf(" (the first %d of %d)", shown, total)
}

// body returns the main part of the screen.
func (m Model) body() []string {
	switch {
	case m.help:
		return append([]string{""}, helpText...)
	case m.screen == waterfall:
		lines := m.waterfallLines()
		from := min(m.waterfallOffset, len(lines))
		return lines[from:]
	case m.screen == connections:
		return m.table(m.connectionList, m.connectionLines(m.width-len(mark)), "No connections: none is open, and the trace has none.")
	}
	return m.table(m.serviceList, m.serviceLines(m.width-len(mark)), "There are no Services.")
}

// mark precedes the selected line, for terminals without reverse video.
const mark = "> "

// table draws the part of a table that fits. lines has the titles first, then a line for each key of l. empty is the
// text for a table without lines.
func (m Model) table(l list, lines []string, empty string) []string {
	blank := strings.Repeat(" ", len(mark))
	out := []string{show.Title.Text(blank + lines[0])}
	if len(l.keys) == 0 {
		switch {
		case m.seen.IsZero():
			empty = "Asking…"
		case m.filter != "":
			empty = "Nothing matches the filter; esc clears it."
		}
		return append(out, "", blank+empty)
	}
	from, to := l.window(m.listHeight())
	for i := from; i < to; i++ {
		line := lines[i+1]
		if i == l.chosen {
			plain := ansi.Strip(line)
			out = append(out, show.Chose.Text(mark+plain+strings.Repeat(" ", max(0, m.width-len(mark)-ansi.StringWidth(plain)))))
			continue
		}
		out = append(out, blank+line)
	}
	return out
}

// foot lists the keys, as many as fit.
func (m Model) foot() string {
	all, few := "↑↓ select  enter open  esc back  c all connections  s sort  / filter  p pause  ? help  q quit", "↑↓ enter esc  s sort  / filter  ? help  q quit"
	switch {
	case m.help:
		all, few = "any key goes back", ""
	case m.typing:
		all, few = "type the filter; enter keeps it, esc clears it", "enter keeps it, esc clears it"
	case m.screen == services:
		all = "↑↓ select  enter connections  c all connections  s sort  / filter  p pause  ? help  q quit"
	case m.screen == waterfall:
		all, few = "↑↓ scroll  esc back  p pause  ? help  q quit", "esc back  ? help  q quit"
	}
	if ansi.StringWidth(all) > m.width {
		all = few
	}
	return show.Quiet.Text(all)
}

// waterfallLines returns the waterfall of the shown connection, with long lines wrapped.
func (m Model) waterfallLines() []string {
	lines := show.Waterfall(m.shown, m.width)
	if m.gone {
		lines = append([]string{show.Care.Text("usher no longer keeps this connection; showing its last known state."), ""}, lines...)
	}
	return strings.Split(ansi.Wrap(strings.Join(lines, "\n"), m.width, ""), "\n")
}
