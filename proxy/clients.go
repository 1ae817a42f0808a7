package proxy

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/forward"
)

// ClusterIP returns the address that clients connect to for a TCP port of a Service: the IPv4 cluster IP, unless only
// the IPv6 one exists or has endpoints. at is invalid if the Service has no such port. known reports whether usher
// serves the Service.
func (p *Proxy) ClusterIP(service types.NamespacedName, port uint16) (at netip.AddrPort, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fronts, known := p.services[service]
	served := false // at has endpoints
	for _, f := range fronts {
		v := f.View()
		has := v.Internal.Len() > 0
		for _, vip := range v.Port.VIPs {
			if f.Protocol != config.TCP || vip.Kind != config.ClusterIP || vip.Port != port {
				continue
			}
			if !at.IsValid() || has && !served || has == served && vip.Addr.Is4() {
				at, served = vip.AddrPort(), has
			}
		}
	}
	return at, known
}

// Serves reports whether vip belongs to a TCP service port (known), and whether that port has an endpoint for clients
// on this node (usable).
func (p *Proxy) Serves(vip netip.AddrPort) (known, usable bool) {
	f := p.ownerOf(vip)
	if f == nil {
		return false, false
	}
	v := f.View()
	at, ok := v.VIPAt(vip)
	return true, ok && v.Endpoints(at, true).Len() > 0
}

// Serve serves a client that named vip instead of connecting to it, for example in a SOCKS request. It takes ownership
// of client and returns at once. If vip is no longer served, Serve resets client.
func (p *Proxy) Serve(client forward.Conn, from, vip netip.AddrPort) {
	f := p.ownerOf(vip)
	if f == nil {
		_ = client.SetLinger(0)
		client.Close()
		return
	}
	p.streams.Serve(f.FrontEnd, client, from, vip)
}

// ownerOf returns the front end that serves a VIP for TCP, or nil.
func (p *Proxy) ownerOf(vip netip.AddrPort) *frontEnd {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return nil
	}
	return p.owners[portal.Target{Protocol: portal.TCP, Addr: vip.Addr(), Port: vip.Port()}]
}
