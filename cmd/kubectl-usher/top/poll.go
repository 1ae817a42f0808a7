package top

import (
	"context"
	"errors"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// maxItems is the maximum length of a list: users do not scroll further, and there is a filter. usher returns the first
// items in the sort order.
const maxItems = 500

// tick is the message that the next query is due.
type tick struct{}

func (m Model) tick() tea.Cmd {
	return tea.Tick(m.interval, func(time.Time) tea.Msg { return tick{} })
}

// answer is usher's answer to one query, or the reason why there is none.
type answer struct {
	number uint64 // of the query
	at     time.Time
	err    error

	source  Source    // of the answer
	renewed time.Time // as in Model

	status      api.Status
	total       int
	services    []api.Service
	connections []api.Connection
	connection  api.Connection
	gone        bool // usher no longer has the connection
}

// ask returns the command that queries the status and the data for the screen.
func (m Model) ask() tea.Cmd {
	return func() tea.Msg {
		m.findAgain() // changes this copy of the Model; take stores the result
		a := answer{number: m.asked, source: m.source, renewed: m.renewed}
		if a.status, a.err = m.source.Status(m.ctx); a.err == nil {
			m.askMore(&a)
		}
		a.at = time.Now()
		return a
	}
}

// renewPause is the minimum time between two searches for a replacement of the source, and the time limit for a search.
const renewPause = 3 * time.Second

// findAgain replaces the source if the last query did not reach it: its Pod may have been replaced.
func (m *Model) findAgain() {
	var unreachable *client.UnreachableError
	if m.renew == nil || !errors.As(m.err, &unreachable) || time.Since(m.renewed) < renewPause {
		return
	}
	m.renewed = time.Now()
	ctx, cancel := context.WithTimeout(m.ctx, renewPause)
	defer cancel()
	if c, err := m.renew(ctx); err == nil && c != nil {
		m.source = c
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
		list, a.err = m.source.Connections(m.ctx, client.ConnectionQuery{State: "all", Service: m.service, Sort: connectionSorts[m.connectionSort].sort, Max: maxItems})
		a.connections, a.total = list.Items, list.Total
		if client.IsNotFound(a.err) { // the Service was deleted
			a.err = nil
		}
	case waterfall:
		a.connection, a.err = m.source.Connection(m.ctx, m.shown.ID)
		if client.IsNotFound(a.err) {
			a.err, a.gone = nil, true
		}
	}
}
