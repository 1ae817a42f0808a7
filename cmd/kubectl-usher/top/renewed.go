package top

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// renewPause is the minimum time between two searches for the instance.
const renewPause = 3 * time.Second

// renewed is a Source whose usher may be replaced by one at another address.
type renewed struct {
	renew func(context.Context) (*client.Client, error)

	mu     sync.Mutex
	client *client.Client
	last   time.Time // when renew was called
}

// Renewed returns a Source that queries c. When c is unreachable, it queries the client that renew returns from then on,
// unless that is nil.
func Renewed(c *client.Client, renew func(context.Context) (*client.Client, error)) Source {
	return &renewed{renew: renew, client: c}
}

// query calls ask with the current client.
func query[T any](ctx context.Context, r *renewed, ask func(*client.Client) (T, error)) (T, error) {
	r.mu.Lock()
	c := r.client
	r.mu.Unlock()
	answer, err := ask(c)
	var unreachable *client.UnreachableError
	if !errors.As(err, &unreachable) || !r.due() {
		return answer, err
	}
	ctx, cancel := context.WithTimeout(ctx, renewPause)
	defer cancel()
	if now, errFind := r.renew(ctx); errFind == nil && now != nil {
		r.mu.Lock()
		r.client = now
		r.mu.Unlock()
	}
	return answer, err // the next query uses the new client
}

// due reports whether renew may be called, and assumes that it is.
func (r *renewed) due() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.last) < renewPause {
		return false
	}
	r.last = time.Now()
	return true
}

func (r *renewed) Status(ctx context.Context) (api.Status, error) {
	return query(ctx, r, func(c *client.Client) (api.Status, error) { return c.Status(ctx) })
}

func (r *renewed) Services(ctx context.Context, q client.ServiceQuery) (api.ServiceList, error) {
	return query(ctx, r, func(c *client.Client) (api.ServiceList, error) { return c.Services(ctx, q) })
}

func (r *renewed) Connections(ctx context.Context, q client.ConnectionQuery) (api.ConnectionList, error) {
	return query(ctx, r, func(c *client.Client) (api.ConnectionList, error) { return c.Connections(ctx, q) })
}

func (r *renewed) Connection(ctx context.Context, id uint64) (api.Connection, error) {
	return query(ctx, r, func(c *client.Client) (api.Connection, error) { return c.Connection(ctx, id) })
}
