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

// Options select the checks.
type Options struct {
	Service string // "namespace/name"; "" means all
	Client  string // the address of a client to check access for; "" means none
	DNS     string // "host:port" of a DNS server to query for the Services' names; "" means none
	Domain  string // the cluster's domain, for those names; "" means cluster.local
	Remote  bool   // usher is on another machine: only its data is checked, and queries may take longer
}

// Time limits for queries and checks, and the maximum number of Services to check closely.
const (
	askTime     = 2 * time.Second
	checkTime   = 6 * time.Second
	remoteTime  = 20 * time.Second
	maxServices = 50
)

// atMost returns the time limit for an operation: local if usher runs on this machine, otherwise remoteTime.
func (o Options) atMost(local time.Duration) time.Duration {
	if o.Remote {
		return remoteTime
	}
	return local
}

// subject is the data to check.
type subject struct {
	Options
	client   *client.Client
	status   api.Status
	services []api.ServiceDetail

	failed    []api.Connection // the recently failed connections that are kept, the newest first; set by Run
	failedErr error
}

// ask queries usher's status, and the Services to check closely. It returns an error if usher does not respond, or has
// no such Service.
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

// worst returns the names of the worst Services, at most maxServices: those with problems, and those with the most
// failed or retried connections.
func (s *subject) worst(ctx context.Context) (names []string, err error) {
	add := func(name string) {
		if len(names) < maxServices && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, p := range s.status.Problems {
		if name, is := strings.CutPrefix(p.Object, "Service "); is && len(names) < maxServices/2 {
			add(name)
		}
	}
	for _, by := range []string{api.SortFailed, api.SortRetries} {
		list, err := s.client.Services(ctx, client.ServiceQuery{Sort: by, Max: maxServices})
		if err != nil {
			return nil, err
		}
		for _, item := range list.Items[:min(len(list.Items), maxServices)] {
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

// vips calls do once for each address of VIPs, with its first port. It omits those that stand for all addresses of the
// node, such as 0.0.0.0.
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

// endpointName returns the name of an endpoint for a finding.
func endpointName(e *api.Endpoint) string {
	if e.Pod == "" {
		return e.Address
	}
	return e.Address + " (" + e.Pod + ")"
}
