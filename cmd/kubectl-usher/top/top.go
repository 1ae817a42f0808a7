package top

import (
	"context"
	"errors"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// Source is the usher that is watched. [client.Client] is one.
type Source interface {
	Status(context.Context) (api.Status, error)
	Services(context.Context, client.ServiceQuery) (api.ServiceList, error)
	Connections(context.Context, client.ConnectionQuery) (api.ConnectionList, error)
	Connection(context.Context, uint64) (api.Connection, error)
}

// Options say what is shown first.
type Options struct {
	Namespace string        // only this one; "" is all
	Service   string        // the connections of this one, namespace/name; "" is the list of Services
	Interval  time.Duration // between two questions
	Input     io.Reader
	Output    io.Writer
}

// Run takes over the terminal until the user quits, ctx ends, or a signal comes.
// The terminal is then as it was.
func Run(ctx context.Context, source Source, o Options) error {
	// Who cannot be asked now is better told about on the ordinary screen.
	if _, err := source.Status(ctx); err != nil {
		return err
	}
	_, err := tea.NewProgram(New(ctx, source, o), tea.WithContext(ctx), tea.WithInput(o.Input), tea.WithOutput(o.Output)).Run()
	if errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}
