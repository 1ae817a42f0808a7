package admin

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal/kernel"
)

// HealthChecks serves the healthCheckNodePorts of Services with externalTrafficPolicy Local, where load
// balancers ask whether this node has local endpoints. There is a server for each such Service.
type HealthChecks struct {
	// Serving reports whether the proxy itself is healthy.
	Serving func() bool
	Log     logrus.FieldLogger
	// OnProblem, if not nil, is called when a port cannot be served, and with nil when it can be again.
	OnProblem func(types.NamespacedName, error)

	mu       sync.Mutex
	networks []netip.Prefix // see SetNetworks
	servers  map[types.NamespacedName]*healthCheck
	clients  connLimiter // of all servers
	over     bool        // Close was called
}

// healthCheck is the server for one Service. HealthChecks.mu guards all fields but local.
type healthCheck struct {
	owner   *HealthChecks
	service types.NamespacedName
	port    uint16
	local   [2]atomic.Int64 // endpoints of IPv4, and of IPv6
	server  *http.Server
	failed  string // why the port is unavailable; "" if it is not

	listeners map[string]net.Listener // of server, by host: see hosts
}

// SetNetworks makes the servers listen only on the node's addresses in these networks; none, the default, means
// all addresses.
func (h *HealthChecks) SetNetworks(within []netip.Prefix) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.Equal(h.networks, within) {
		return
	}
	h.networks = slices.Clone(within)
	h.listen()
}

// Apply starts, changes and stops servers according to the Services.
func (h *HealthChecks) Apply(services []config.Service) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over { // a successor has the ports
		return
	}
	if h.servers == nil {
		h.servers = map[types.NamespacedName]*healthCheck{}
		h.clients.slots = MaxClients
	}
	for _, s := range services { // before others start: they may get the same port
		if c := h.servers[s.Name]; c != nil && c.port != s.HealthCheckNodePort {
			c.stop()
			delete(h.servers, s.Name)
		}
	}
	for _, s := range services {
		if s.HealthCheckNodePort == 0 {
			continue
		}
		c := h.servers[s.Name]
		if c == nil {
			c = &healthCheck{owner: h, service: s.Name, port: s.HealthCheckNodePort, listeners: map[string]net.Listener{}}
			c.server = newServer(oneAnswer(http.HandlerFunc(c.answer)), &h.clients)
			h.servers[s.Name] = c
		}
		for six := range c.local {
			c.local[six].Store(int64(localEndpoints(s, six == 1)))
		}
	}
	h.listen()
}

// addresses returns the addresses that the servers listen on.
func (h *HealthChecks) addresses() (all []string) {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.servers {
		for _, l := range c.listeners {
			all = append(all, l.Addr().String())
		}
	}
	slices.Sort(all)
	return all
}

// Retry opens ports that were unavailable, and those on new addresses of the node. It closes those on removed ones.
func (h *HealthChecks) Retry() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listen()
}

// listen opens and closes the listeners of all servers as needed.
func (h *HealthChecks) listen() {
	if len(h.servers) == 0 {
		return
	}
	hosts, err := h.hosts()
	if err != nil {
		return // the listeners stay as they are
	}
	for _, c := range h.servers {
		c.listen(hosts)
	}
}

// hosts returns the hosts to listen on: "" for all addresses, or this node's addresses in the networks.
func (h *HealthChecks) hosts() (hosts []string, err error) {
	if len(h.networks) == 0 {
		return []string{""}, nil
	}
	addrs, err := kernel.LocalAddrs()
	for _, a := range addrs {
		if !a.IsLinkLocalUnicast() && kernel.ContainsAddr(h.networks, a) {
			hosts = append(hosts, a.String())
		}
	}
	return hosts, err
}

// Close stops all servers. Apply has no effect afterwards.
func (h *HealthChecks) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	for name, c := range h.servers {
		c.stop()
		delete(h.servers, name)
	}
}

// localEndpoints returns the number of ready endpoints of one IP family that s has on this node. A Pod counts
// once, whatever ports it serves.
func localEndpoints(s config.Service, six bool) int {
	endpoints := map[string]bool{}
	for _, p := range s.Ports {
		if !p.ExternalLocal {
			continue
		}
		for _, e := range p.External {
			// Terminating endpoints still get the clients that come here, but a balancer with a choice should
			// use another node.
			if e.Ready && e.Addr.Addr().Is6() == six {
				endpoints[cmp.Or(e.Pod, e.Addr.Addr().String())] = true
			}
		}
	}
	return len(endpoints)
}

// listen opens the port on hosts, unless it is open, and closes it on others.
func (c *healthCheck) listen(hosts []string) {
	for host, l := range c.listeners { // before others open: they may need the port
		if !slices.Contains(hosts, host) {
			l.Close()
			delete(c.listeners, host)
		}
	}
	var failed error
	if len(hosts) == 0 {
		failed = errors.New("this node has no address in the node port networks")
	}
	for _, host := range hosts {
		if c.listeners[host] != nil {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(int(c.port))))
		if err != nil {
			if op, ok := errors.AsType[*net.OpError](err); ok {
				err = op.Err
			}
			failed = fmt.Errorf("cannot listen: %w", err)
			continue
		}
		c.listeners[host] = l
		go func() { _ = c.server.Serve(l) }() // until l is closed
	}
	if failed != nil {
		failed = fmt.Errorf("health check node port %d: %w", c.port, failed)
	}
	c.report(failed)
}

func (c *healthCheck) stop() {
	for _, l := range c.listeners { // Close does not know listeners that Serve has not reached
		l.Close()
	}
	c.server.Close()
}

// report reports a problem once.
func (c *healthCheck) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == c.failed {
		return
	}
	c.failed = text
	if err != nil {
		c.owner.Log.WithField("service", c.service.String()).WithError(err).Error("Cannot serve the health check of a Service to load balancers")
	}
	if c.owner.OnProblem != nil {
		c.owner.OnProblem(c.service, err)
	}
}

// answer answers a load balancer. It counts only endpoints of the request's IP family, as kube-proxy does, which
// has a server for each family.
func (c *healthCheck) answer(w http.ResponseWriter, r *http.Request) {
	serving := c.owner.Serving()
	local := c.local[0].Load()
	if at, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); at != nil && at.IP.To4() == nil {
		local = c.local[1].Load()
	}
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(local, 10))
	status := http.StatusOK
	if local == 0 || !serving {
		status = http.StatusServiceUnavailable
	}
	type service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	}
	WriteJSON(w, status, struct {
		Service             service `json:"service"`
		LocalEndpoints      int64   `json:"localEndpoints"`
		ServiceProxyHealthy bool    `json:"serviceProxyHealthy"`
	}{service{c.service.Namespace, c.service.Name}, local, serving})
}
