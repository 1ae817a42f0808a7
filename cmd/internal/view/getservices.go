package view

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/fleet"
	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func (v Viewers) newGetServices() *cobra.Command {
	f := getFlags{asks: v.Asks()}
	var q client.ServiceQuery
	cmd := &cobra.Command{
		Use:     "services [NAME…]",
		Aliases: []string{"service", "svc"},
		Short:   "Services: state, endpoints, connections",
		Long: `Lists Services. STATE is one of:

  ok                           no other state applies
  degraded                     some endpoint is an outlier, unresponsive, in
                               quarantine, terminating or not ready
  down                         all usable endpoints of a port are in quarantine
  no-endpoints                 a port has no usable endpoint
  no-local-endpoints           internalTrafficPolicy is Local and a port has no
                               endpoint on this node: packets to the cluster IP
                               are dropped, or refused if the portal is address
                               or none
  no-local-endpoints-external  externalTrafficPolicy is Local and a port has no
                               endpoint on this node: external clients must use
                               another node
  problem                      some port is not served
  rejected                     no port is served: the manifest is invalid

The state of a Service is the worst of its ports and IP families. -o wide shows the
reason, and 'usher diagnose NAME' suggests next steps. ENDPOINTS is the number of
ready endpoints, and of all endpoints. Counts start when usher starts. CONNECT and FIRST BYTE are
the p50 and p99 of the last 5 to 10 minutes: the time until clients were connected, and
until the endpoint's first byte.`,
		Example: `  usher get services -A
  usher get services web -o yaml
  usher get services -A --filter 10.96.0 --sort retries`,
		ValidArgsFunction: f.completeServices,
	}
	cmd.RunE = get(&f, f.serviceKind(&q))
	flags := cmd.Flags()
	flags.StringVar(&q.Text, "filter", "", "Only Services with this `text` in their name, a port name, a VIP, or an endpoint's address or Pod")
	cli.Choice(flags, &q.State, "state", "", "Only Services in this `state`", api.Values("/services", "state")...)
	cli.Choice(flags, &q.Protocol, "protocol", "", "Only Services with a port of this `protocol`: TCP, UDP, SCTP", api.Values("/services", "protocol")...)
	cli.Choice(flags, &q.Sort, "sort", "", "Sort largest first by active, connections, failed, retries or bytes. Empty = by name", api.Values("/services", "sort")...)
	f.registerApart(flags)
	f.registerAll(cmd)
	return cmd
}

// serviceKind lists the Services that q and the command line select.
func (f *getFlags) serviceKind(q *client.ServiceQuery) kind[api.Service] {
	return kind[api.Service]{
		plural: "Services", columns: show.Services, service: serviceOf,
		list: func(ctx context.Context, u fleet.Usher, names []string) ([]api.Service, error) {
			return f.services(ctx, u.Client, *q, names)
		},
		merge: fleet.Services,
		state: &q.State,
		order: func(a, b api.Service) int { return fleet.CompareServices(q.Sort, a, b) },
		name:  func(s api.Service) string { return "service/" + f.nameOf(serviceOf(s)) },
		key:   serviceOf,
		news:  func(s api.Service) string { return fmt.Sprint(s.State, s.Endpoints, portsOf(s)) },
	}
}

func serviceOf(s api.Service) string { return s.Namespace + "/" + s.Name }

func portsOf(s api.Service) (ports []string) {
	for _, p := range s.Ports {
		ports = append(ports, p.VIP+"/"+p.Protocol)
	}
	return ports
}

// services returns the Services that the command line selects, and perhaps others, which wanted excludes.
func (f *getFlags) services(ctx context.Context, c *client.Client, q client.ServiceQuery, names []string) ([]api.Service, error) {
	switch namespace, name, _ := strings.Cut(f.only(names), "/"); {
	case name != "":
		q.Namespace, q.Name = namespace, name
	case !f.all && len(names) == 0: // names may contain a namespace
		q.Namespace = f.Namespace
	}
	list, err := c.Services(ctx, q)
	return list.Items, err
}

func (v Viewers) newGetEndpoints() *cobra.Command {
	f := getFlags{asks: v.Asks()}
	var q client.ServiceQuery
	var state string
	cmd := &cobra.Command{
		Use:     "endpoints [SERVICE… | ADDRESS…]",
		Aliases: []string{"endpoint", "ep"},
		Short:   "endpoints: state, quarantine, connections, failures",
		Long: `Lists the endpoints of Services, separately for each port. STATE is one of:

  ready         its conditions are good, and no other state applies
  quarantined   it or its probes failed; skipped while another endpoint is
                usable. QUARANTINE shows the next probe or the remaining time,
                and the cause
  outlier       used as if ready, but it reset most of its last connections, or
                at least 2% of those of the last 5 to 10 minutes
  unresponsive  used as if ready, but in the last 5 to 10 minutes none of its 5
                or more clients got a byte, or a far larger share got none than
                at other endpoints of its port: the process probably hangs
  terminating   used only if no endpoint is ready
  not-ready     not used

NO RESPONSE is the number of clients that left without a byte. NOT USED is the reason
why an endpoint, even a ready one, gets no new connections, or none from some clients:
its weight, a traffic policy or topology. CONNECT and FIRST BYTE are as in
'usher get services', for the clients that this endpoint served. An ADDRESS with its
port selects endpoints of any Service.`,
		Example: `  usher get endpoints web
  usher get endpoints -A -o wide
  usher get endpoints -A --state quarantined`,
		ValidArgsFunction: f.completeServices,
	}
	ofServices := api.Values("/services", "state")
	k := f.endpointKind(&q)
	k.state = &state
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if slices.Contains(ofServices, state) {
			q.State = state
		} else if state != "" {
			k.keep = func(e show.PortEndpoint) bool { return string(e.State) == state }
		}
		return get(&f, k)(cmd, args)
	}
	cmd.Flags().StringVar(&q.Text, "filter", "", "Only endpoints of Services with this `text` in their name, a port name, a VIP, or an endpoint's address or Pod")
	cli.Choice(cmd.Flags(), &state, "state", "", "Only endpoints in this `state`, or of Services in this state (see 'usher get services --help')", append(api.Names(api.EndpointStates), ofServices...)...)
	f.registerApart(cmd.Flags())
	f.registerAll(cmd)
	return cmd
}

// endpointKind lists the endpoints of the Services that q and the command line select.
func (f *getFlags) endpointKind(q *client.ServiceQuery) kind[show.PortEndpoint] {
	service := func(e show.PortEndpoint) string { return e.Namespace + "/" + e.Service }
	var known sync.Map // by node: a map[string]knownEndpoints by Service, which only the list of that node uses
	return kind[show.PortEndpoint]{
		plural: "endpoints", columns: show.Endpoints, service: service,
		list: func(ctx context.Context, u fleet.Usher, names []string) ([]show.PortEndpoint, error) {
			of, _ := known.LoadOrStore(u.Node, map[string]knownEndpoints{})
			return f.endpoints(ctx, u.Client, *q, names, of.(map[string]knownEndpoints))
		},
		merge:   fleet.Endpoints,
		order:   func(a, b show.PortEndpoint) int { return cmp.Compare(service(a), service(b)) }, // within a Service, in usher's order
		address: func(e show.PortEndpoint) string { return e.Address },
		name:    func(e show.PortEndpoint) string { return "endpoint/" + e.Address },
		key:     func(e show.PortEndpoint) string { return fmt.Sprint(service(e), e.Port, e.Protocol, e.Address) },
		news: func(e show.PortEndpoint) string {
			if e.Quarantine != nil {
				return string(e.State) + strings.TrimLeft(e.Quarantine.Cause, "0123456789") // without the number of failed probes
			}
			return string(e.State)
		},
	}
}

// knownEndpoints are the endpoints of a Service at the time of the last request for them.
type knownEndpoints struct {
	of    api.Service
	asked time.Time
	items []show.PortEndpoint
}

// staleInterval times the number of Services is the time after which -w requests an unchanged Service again: at most
// 100 a second from each instance.
const staleInterval = watchInterval / 100

// endpoints returns the endpoints of the Services that the command line selects. For -w, it caches them in known.
func (f *getFlags) endpoints(ctx context.Context, c *client.Client, q client.ServiceQuery, names []string, known map[string]knownEndpoints) (items []show.PortEndpoint, err error) {
	services, err := f.servicesWith(ctx, c, q, names)
	if err != nil {
		return nil, err
	}
	stale := time.Duration(len(services)) * staleInterval
	selected := map[string]bool{}
	for _, s := range services {
		selected[serviceOf(s)] = true
		if k, is := known[serviceOf(s)]; is && time.Since(k.asked) < stale && reflect.DeepEqual(k.of, s) {
			items = append(items, k.items...)
			continue
		}
		detail, err := c.Service(ctx, s.Namespace, s.Name)
		if client.IsNotFound(err) {
			continue // it was deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		k := knownEndpoints{of: s, asked: time.Now(), items: show.PortEndpoints(detail)}
		known[serviceOf(s)] = k
		items = append(items, k.items...)
	}
	maps.DeleteFunc(known, func(name string, _ knownEndpoints) bool { return !selected[name] })
	return items, nil
}

// servicesWith returns the Services in names, and those that may have endpoints whose addresses are in names.
func (f *getFlags) servicesWith(ctx context.Context, c *client.Client, q client.ServiceQuery, names []string) (all []api.Service, err error) {
	add := func(more []api.Service, wanted func(api.Service) bool) {
		for _, s := range more {
			same := func(o api.Service) bool { return serviceOf(o) == serviceOf(s) }
			if wanted(s) && (len(names) == 0 || !slices.ContainsFunc(all, same)) {
				all = append(all, s)
			}
		}
	}
	var addresses, others []string
	for _, n := range names {
		if isAddress(n) {
			addresses = append(addresses, n)
		} else {
			others = append(others, n)
		}
	}
	if len(addresses) > 0 && q.Text != "" {
		return nil, cli.Usagef("--filter cannot be combined with the address of an endpoint (%s)", addresses[0])
	}
	if len(addresses) == 0 || len(others) > 0 {
		list, err := f.services(ctx, c, q, others)
		if err != nil {
			return nil, err
		}
		add(list, func(s api.Service) bool { return f.wanted(serviceOf(s), others) })
	}
	for _, q.Text = range addresses {
		list, err := c.Services(ctx, q)
		if err != nil {
			return nil, err
		}
		add(list.Items, func(api.Service) bool { return true })
	}
	return all, nil
}
