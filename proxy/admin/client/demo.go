package client

import (
	"context"
	"errors"
	"net/http"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// ErrNoDemo means that the server is not usher demo.
var ErrNoDemo = errors.New("this usher is not a demo: only servers of 'usher demo' can be broken and repaired")

// DemoEndpoints returns the demo's servers.
func (c *Client) DemoEndpoints(ctx context.Context) (out api.DemoEndpointList, err error) {
	err = c.ask(ctx, http.MethodGet, api.DemoEndpointsPath, nil, nil, &out)
	if IsNotFound(err) {
		return out, ErrNoDemo
	}
	return out, noDemo(err)
}

// Break breaks one of the demo's servers.
func (c *Client) Break(ctx context.Context, b api.DemoBreak) (out api.DemoEndpoint, err error) {
	return out, noDemo(c.ask(ctx, http.MethodPost, api.DemoBreakPath, nil, b, &out))
}

// Repair repairs one of the demo's servers, or all.
func (c *Client) Repair(ctx context.Context, m api.DemoRepair) (out api.DemoEndpointList, err error) {
	return out, noDemo(c.ask(ctx, http.MethodPost, api.DemoRepairPath, nil, m, &out))
}

// noDemo returns ErrNoDemo if usher does not know the path or the method.
func noDemo(err error) error {
	var e *api.Error
	var not *NotUsherError
	if errors.As(err, &not) || errors.As(err, &e) && e.Code == http.StatusMethodNotAllowed {
		return ErrNoDemo
	}
	return err
}
