package top

import (
	"context"
	"errors"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// Source is the usher instance to watch. [client.Client] implements it.
type Source interface {
	Status(context.Context) (api.Status, error)
	Services(context.Context, client.ServiceQuery) (api.ServiceList, error)
	Connections(context.Context, client.ConnectionQuery) (api.ConnectionList, error)
	Connection(context.Context, uint64) (api.Connection, error)
}

// Options configure the initial view.
type Options struct {
	Namespace string        // of the Services; "" means all
	Service   string        // begin with the connections of this Service, "namespace/name"; "" means begin with the Services
	Interval  time.Duration // between two queries

	// Renew returns a client of the instance that replaces an unreachable one, or nil if there is none. If Renew is
	// nil, the source never changes.
	Renew func(context.Context) (*client.Client, error)
}

// Run shows the view until the user quits, ctx ends, or a signal arrives. It then restores the terminal.
func Run(ctx context.Context, source Source, o Options) error {
	// Return this error before the full screen replaces the terminal's content.
	if _, err := source.Status(ctx); err != nil {
		return err
	}
	_, err := tea.NewProgram(New(ctx, source, o), tea.WithContext(ctx)).Run()
	if errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}
