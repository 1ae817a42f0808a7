package diagnose

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// Options say what is looked at.
type Options struct {
	Service string // namespace/name; "" is all
	Client  string // an address of which it is asked whether it would be let in; "" is none
	DNS     string // host:port of a server that is asked for the Services' names; "" is none
	Domain  string // of those names
	Remote  bool   // usher is on another machine: only what it tells is looked at, and it may take longer
}

// How long is asked and looked at, and how many Services, of those that do badly, closely.
const (
	askTime    = 2 * time.Second
	checkTime  = 3 * time.Second
	remoteTime = 20 * time.Second
	most       = 50
)

// atMost returns how long something may take that takes so long on the node itself.
func (o Options) atMost(here time.Duration) time.Duration {
	if o.Remote {
		return remoteTime
	}
	return here
}

// subject is what is looked at.
type subject struct {
	Options
	client   *client.Client
	status   api.Status
	services []api.ServiceDetail
}

// ask returns what usher knows. The error is that it does not answer, or has no such Service.
func ask(ctx context.Context, c *client.Client, o Options) (*subject, error) {
	ctx, cancel := context.WithTimeout(ctx, o.atMost(askTime))
	defer cancel()
	s := &subject{Options: o, client: c}
	var err error
	if s.status, err = c.Status(ctx); err != nil {
		return nil, err
	}
	names := []string{o.Service}
	if o.Service == "" {
		if names, err = s.worst(ctx); err != nil {
			return nil, err
		}
	}
	for _, n := range names {
		namespace, name, _ := strings.Cut(n, "/")
		detail, err := c.Service(ctx, namespace, name)
		switch {
		case err == nil:
			s.services = append(s.services, detail)
		case o.Service != "" || !client.IsNotFound(err) && ctx.Err() == nil:
			return nil, err
		}
	}
	return s, nil
}

// worst returns the names of the Services that do worst: those with problems, and those of which
// most connections failed, or were retried.
func (s *subject) worst(ctx context.Context) (names []string, err error) {
	add := func(name string) {
		if len(names) < most && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, p := range s.status.Problems {
		if name, is := strings.CutPrefix(p.Object, "Service "); is && len(names) < most/2 {
			add(name)
		}
	}
	for _, by := range []string{api.SortFailed, api.SortRetries} {
		list, err := s.client.Services(ctx, client.ServiceQuery{Sort: by, Max: most})
		if err != nil {
			return nil, err
		}
		for _, item := range list.Items[:min(len(list.Items), most)] {
			add(item.Namespace + "/" + item.Name)
		}
	}
	return names, nil
}

// place is a port of a Service.
type place struct {
	object   string // "Service default/web"
	name     string // "default/web"
	problems []api.Problem
	port     *api.ServicePort
}

func (s *subject) ports(do func(place)) {
	for i := range s.services {
		d := &s.services[i]
		name := d.Namespace + "/" + d.Name
		for j := range d.Details {
			do(place{"Service " + name, name, d.Problems, &d.Details[j]})
		}
	}
}

// vips calls do with each VIP that is an address, once.
func (s *subject) vips(do func(place, netip.AddrPort)) {
	seen := map[netip.Addr]bool{}
	s.ports(func(p place) {
		for _, v := range p.port.VIPs {
			at, err := netip.ParseAddrPort(v.Address)
			if err == nil && !at.Addr().IsUnspecified() && !seen[at.Addr()] {
				seen[at.Addr()] = true
				do(p, at)
			}
		}
	})
}

// endpointName tells an endpoint.
func endpointName(e *api.Endpoint) string {
	if e.Pod == "" {
		return e.Address
	}
	return e.Address + " (" + e.Pod + ")"
}
