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
	Namespace string        // only this one; "" means all
	Service   string        // the connections of this one, namespace/name; "" means the list of Services
	Interval  time.Duration // between two queries

	// Renew returns a client of the instance that replaces an unreachable one; nil if it finds none.
	Renew func(context.Context) (*client.Client, error)
}

// Run uses the terminal until the user quits, ctx ends, or a signal arrives.
// It then restores the terminal.
func Run(ctx context.Context, source Source, o Options) error {
	// Report an unreachable usher on the ordinary screen.
	if _, err := source.Status(ctx); err != nil {
		return err
	}
	_, err := tea.NewProgram(New(ctx, source, o), tea.WithContext(ctx)).Run()
	if errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}
