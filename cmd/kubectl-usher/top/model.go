package top

import (
	"context"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// screen is the current screen.
type screen int

const (
	services screen = iota
	connections
	waterfall
)

// page is a screen and the object that it is about.
type page struct {
	screen  screen
	service string         // of the connections; "" means all
	shown   api.Connection // on the waterfall
}

// Model has the data and the selection. It is a value: Update returns a changed copy.
type Model struct {
	ctx      context.Context
	source   Source
	renew    func(context.Context) (*client.Client, error) // nil if source is never replaced
	renewed  time.Time                                     // when renew was last called
	interval time.Duration

	width, height int

	page
	behind    []page // the pages that esc returns to, in order of visit
	namespace string // of the Services; "" means all

	serviceSort    int // index in serviceSorts
	connectionSort int // index in connectionSorts
	filter         string
	typing         bool // the filter is being typed
	paused, help   bool

	status          api.Status
	rates           rates
	total           int // number of matching Services or connections, of which up to maxItems are listed
	services        []api.Service
	connections     []api.Connection
	gone            bool // usher no longer has the shown connection
	serviceList     list
	connectionList  list
	waterfallOffset int

	asked  uint64    // number of the last query; answers to earlier ones are dropped
	asking bool      // the last query has no answer yet
	seen   time.Time // when usher last answered
	err    error     // the reason why the last query failed
}

// New returns a Model that watches source.
func New(ctx context.Context, source Source, o Options) Model {
	m := Model{ctx: ctx, source: source, renew: o.Renew, interval: o.Interval, namespace: o.Namespace, width: 80, height: 24, asking: true} // see Init
	if o.Service != "" {
		m.service, m.screen = o.Service, connections
	}
	return m
}

// Init implements tea.Model.
func (m Model) Init() tea.Cmd { return tea.Batch(m.ask(), m.tick()) }

// Update implements tea.Model.
func (m Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		return m.key(msg)
	case tick:
		if m.paused || m.asking { // an answer may take longer than the interval
			return m, m.tick()
		}
		next, ask := m.again()
		return next, tea.Batch(ask, m.tick())
	case answer:
		m.take(msg)
	}
	return m, nil
}

// again sends a query, even if the last one is not answered: the screen may need other data now.
func (m Model) again() (tea.Model, tea.Cmd) {
	m.asked++
	m.asking = true
	return m, m.ask()
}

// take stores an answer of usher.
func (m *Model) take(a answer) {
	if a.number != m.asked {
		return // it may be for another screen
	}
	m.asking = false
	m.source, m.renewed = a.source, a.renewed
	if m.err = a.err; a.err != nil {
		return
	}
	m.seen = a.at
	m.rates = m.rates.next(a, m.interval*3/4)
	m.status, m.total = a.status, a.total
	switch m.screen {
	case services:
		m.services = a.services
		m.serviceList.reorder(serviceKeys(m.services))
	case connections:
		m.connections = a.connections
		m.connectionList.reorder(connectionKeys(m.visibleConnections()))
	case waterfall:
		if m.gone = a.gone; !a.gone {
			m.shown = a.connection
		}
	}
}
