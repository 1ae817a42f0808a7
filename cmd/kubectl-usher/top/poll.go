package top

import (
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// maxItems is how many lines a list has at the most: nobody scrolls further, and
// there is a filter. usher finds the first ones among any number.
const maxItems = 500

// tick says that it is time to ask.
type tick struct{}

func (m Model) tick() tea.Cmd {
	return tea.Tick(m.interval, func(time.Time) tea.Msg { return tick{} })
}

// answer is what usher answered to one question, or why it did not.
type answer struct {
	number uint64 // of the question
	at     time.Time
	err    error

	status      api.Status
	total       int
	services    []api.Service
	connections []api.Connection
	connection  api.Connection
	gone        bool // that connection is not known any more
}

// ask returns the command that asks for what the screen needs.
func (m Model) ask() tea.Cmd {
	return func() tea.Msg {
		a := answer{number: m.asked}
		if a.status, a.err = m.source.Status(m.ctx); a.err == nil {
			m.askMore(&a)
		}
		a.at = time.Now()
		return a
	}
}

func (m Model) askMore(a *answer) {
	switch m.screen {
	case services:
		var list api.ServiceList
		list, a.err = m.source.Services(m.ctx, client.ServiceQuery{Namespace: m.namespace, Text: m.filter, Sort: serviceSorts[m.serviceSort].sort, Max: maxItems})
		a.services, a.total = list.Items, list.Total
	case connections:
		var list api.ConnectionList
		list, a.err = m.source.Connections(m.ctx, client.ConnectionQuery{State: "all", Service: m.service, Max: maxItems})
		a.connections, a.total = list.Items, list.Total
	case waterfall:
		a.connection, a.err = m.source.Connection(m.ctx, m.connection)
		if client.IsNotFound(a.err) {
			a.err, a.gone = nil, true
		}
	}
}
