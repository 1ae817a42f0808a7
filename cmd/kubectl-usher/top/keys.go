package top

import (
	"slices"
	"strconv"

	tea "charm.land/bubbletea/v2"
)

// helpText describes the keys.
var helpText = []string{
	"↑ ↓  k j        select a line      PgUp PgDn  Home End   further",
	"enter           the connections of the Service; the attempts of the connection",
	"esc             back",
	"c               connections of all Services",
	"s  S            sort by the next, the previous column",
	"/               filter; enter keeps it, esc clears it",
	"p  space        pause, resume",
	"q  Ctrl-C       quit",
}

// key executes the action of a key.
func (m Model) key(k tea.KeyPressMsg) (tea.Model, tea.Cmd) {
	if k.String() == "ctrl+c" {
		return m, tea.Quit
	}
	if m.typing {
		return m.typed(k)
	}
	if m.help {
		m.help = false
		return m, nil
	}
	switch k.String() {
	case "q":
		return m, tea.Quit
	case "?", "h", "f1":
		m.help = true
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "pgup", "ctrl+b":
		m.move(-m.listHeight())
	case "pgdown", "ctrl+f":
		m.move(m.listHeight())
	case "home", "g":
		m.move(-maxItems)
	case "end", "G":
		m.move(maxItems)
	case "enter", "right", "l":
		return m.open()
	case "esc", "left", "backspace":
		return m.back()
	case "c":
		if m.screen != connections || m.service != "" {
			return m.show(page{screen: connections})
		}
	case "s":
		return m.sort(1)
	case "S":
		return m.sort(-1)
	case "/":
		m.typing = m.screen != waterfall
	case "p", "space":
		if m.paused = !m.paused; !m.paused {
			return m.again()
		}
	}
	return m, nil
}

// typed handles a key while the filter is being typed.
func (m Model) typed(k tea.KeyPressMsg) (tea.Model, tea.Cmd) {
	switch k.String() {
	case "enter":
		m.typing = false
		return m, nil
	case "esc":
		m.typing, m.filter = false, ""
	case "backspace":
		if letters := []rune(m.filter); len(letters) > 0 {
			m.filter = string(letters[:len(letters)-1])
		}
	default:
		m.filter += k.Text
	}
	m.connectionList.reorder(connectionKeys(m.visibleConnections()))
	return m.again()
}

// move selects the line n further down, or scrolls the waterfall by n lines.
func (m *Model) move(n int) {
	switch m.screen {
	case services:
		m.serviceList.move(n)
		m.serviceList.top, _ = m.serviceList.window(m.listHeight())
	case connections:
		m.connectionList.move(n)
		m.connectionList.top, _ = m.connectionList.window(m.listHeight())
	case waterfall:
		m.waterfallOffset = max(0, min(m.waterfallOffset+n, len(m.waterfallLines())-m.bodyHeight()))
	}
}

// open shows the connections of the selected Service, or the waterfall of the selected connection.
func (m Model) open() (tea.Model, tea.Cmd) {
	switch m.screen {
	case services:
		if key := m.serviceList.key(); key != "" {
			return m.show(page{screen: connections, service: key})
		}
	case connections:
		if id, err := strconv.ParseUint(m.connectionList.key(), 10, 64); err == nil {
			i := slices.IndexFunc(m.connections, func(c connection) bool { return c.ID == id })
			return m.show(page{waterfall, m.service, m.connections[i]})
		}
	}
	return m, nil
}

// show changes to another page, from which esc returns. A screen with connections begins empty and without a filter.
func (m Model) show(p page) (tea.Model, tea.Cmd) {
	if p.screen != m.screen {
		m.behind = append(slices.Clone(m.behind), m.page)
	}
	if p.screen == connections {
		m.connections, m.connectionList, m.filter = nil, list{}, ""
	}
	m.enter(p)
	return m.again()
}

// enter sets the page, of which nothing is known yet.
func (m *Model) enter(p page) { m.page, m.total, m.gone, m.waterfallOffset = p, 0, false, 0 }

// back clears the filter or, without one, returns to the previous screen.
func (m Model) back() (tea.Model, tea.Cmd) {
	switch {
	case m.filter != "" && m.screen != waterfall:
		m.filter = ""
		m.connectionList.reorder(connectionKeys(m.visibleConnections()))
	case len(m.behind) > 0:
		to := m.behind[len(m.behind)-1]
		if to.service != m.service { // the listed connections are those of another Service
			m.connections, m.connectionList = nil, list{}
		}
		m.enter(to)
		m.behind = m.behind[:len(m.behind)-1]
	case m.screen != services: // the view began on this screen
		m.screen, m.total = services, 0
	default:
		return m, nil
	}
	return m.again()
}

// sort changes the sort order by step, and selects the first line.
func (m Model) sort(step int) (tea.Model, tea.Cmd) {
	switch m.screen {
	case services:
		m.serviceSort = (m.serviceSort + step + len(serviceSorts)) % len(serviceSorts)
		m.serviceList.chosen, m.serviceList.top = 0, 0
	case connections:
		m.connectionSort = (m.connectionSort + step + len(connectionSorts)) % len(connectionSorts)
		m.connectionList.chosen, m.connectionList.top = 0, 0
	}
	return m.again()
}
