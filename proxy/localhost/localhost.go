package localhost

import (
	"context"
	"net/netip"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/portal/none"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/trace"
)

// interval is the interval for looking for listeners here, and for retrying a port that was in use there.
const interval = 500 * time.Millisecond

// Mirror serves loopback servers of this network namespace in another one.
type Mirror struct {
	proxy  *proxy.Proxy
	served map[server]bool
}

// New returns a mirror that listens on sockets that socket makes in the other namespace; see proxy.Options.Socket.
func New(socket func(domain, kind, protocol int) (fd int, err error)) *Mirror {
	options := proxy.Defaults()
	options.Portal, options.Trace, options.Log = onLoopback{}, trace.NewLog(1), &logrus.Logger{} // discards all: a port in use there is not an error
	options.Socket = socket
	options.Schedule = []time.Duration{10 * time.Second} // a server that does not answer has no other endpoint
	options.Quarantine.First = 0
	options.CheckInterval = interval
	return &Mirror{proxy: proxy.New(options), served: map[server]bool{}}
}

// Refresh looks for listeners here, and serves them there.
func (m *Mirror) Refresh() {
	now, ephemeral := map[server]bool{}, kernel.LocalPorts()
	err := kernel.EachListener(func(protocol portal.Protocol, at netip.AddrPort, _, _ string) {
		for _, s := range servers(protocol, at, ephemeral) {
			now[s] = true
		}
	})
	if err != nil {
		return // some servers may be missing in now
	}
	var changes []config.Service
	for s := range m.served {
		if !now[s] {
			changes = append(changes, config.Service{Name: s.name()})
		}
	}
	for s := range now {
		if !m.served[s] {
			changes = append(changes, s.service())
		}
	}
	m.served = now
	if len(changes) > 0 {
		m.proxy.Apply(changes)
	}
}

// Run refreshes the mirror until ctx ends, and then closes its listeners and connections.
func (m *Mirror) Run(ctx context.Context) {
	go m.proxy.Run(ctx)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			m.proxy.Stop()
			m.proxy.Drain(ctx)
			return
		case <-ticker.C:
			m.Refresh()
		}
	}
}

// server is a socket that listens on a loopback address.
type server struct {
	protocol config.Protocol
	at       netip.AddrPort
}

func (s server) name() types.NamespacedName {
	return types.NamespacedName{Namespace: "localhost", Name: string(s.protocol) + " " + s.at.String()}
}

// service returns a Service with the server as its endpoint, at the same address.
func (s server) service() config.Service {
	name := s.name()
	endpoints := []config.Endpoint{{Addr: s.at, Ready: true, Serving: true}}
	return config.Service{Name: name, Ports: []config.ServicePort{{
		ID:        config.PortID{Namespace: name.Namespace, Service: name.Name, Family: config.FamilyOf(s.at.Addr())},
		Protocol:  s.protocol,
		Policy:    config.DefaultPolicy().For(s.protocol),
		VIPs:      []config.VIP{{Kind: config.ClusterIP, Addr: s.at.Addr(), Port: s.at.Port()}},
		Endpoints: endpoints, Cluster: endpoints, Internal: endpoints, External: endpoints,
	}}}
}

// onLoopback is a portal to addresses that already exist.
type onLoopback struct{ portal.Plain }

func (onLoopback) Mode() string { return none.Mode.Name }

func (onLoopback) Traits() portal.Traits { return none.Mode.Traits }

func (onLoopback) Listen(_ string, targets []portal.Target) (binds []portal.Bind) {
	for _, t := range targets {
		binds = append(binds, portal.Bind{Addr: netip.AddrPortFrom(t.Addr, t.Port), Targets: []portal.Target{t}})
	}
	return binds
}

func (onLoopback) Apply(context.Context, []portal.Rule, []portal.Target) portal.Result {
	return portal.Result{}
}
