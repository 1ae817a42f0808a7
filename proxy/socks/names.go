package socks

import (
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/proxy"
)

// clusterDomain is what Services' names end with, if they are given in full.
const clusterDomain = "cluster.local"

// serviceOf returns the Service that a host name is for, if it is one's, and whether
// it can be nothing else. A name of one label is a Service of the namespace default.
func serviceOf(host string) (name types.NamespacedName, certain, ok bool) {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	host, full := strings.CutSuffix(host, "."+clusterDomain)
	host, svc := strings.CutSuffix(host, ".svc")
	service, namespace, two := strings.Cut(host, ".")
	if service == "" || strings.Contains(namespace, ".") || full && !svc {
		return name, full || svc, false
	}
	if !two {
		if svc {
			return name, true, false // NAMESPACE.svc
		}
		namespace = "default"
	}
	return types.NamespacedName{Namespace: namespace, Name: service}, svc, true
}

// route is where a request leads.
type route int

const (
	direct  route = iota // not to a Service
	service              // to a Service's VIP
	unknown              // a Service's name, but there is none
	refused              // a Service without this port, or without endpoints
)

// routeOf tells where a request for host, a name or an address, leads.
func routeOf(p *proxy.Proxy, host string, port uint16) (route, netip.AddrPort) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return routeOfVIP(p, netip.AddrPortFrom(addr.Unmap(), port))
	}
	name, certain, ok := serviceOf(host)
	if !ok {
		if certain {
			return unknown, netip.AddrPort{}
		}
		return direct, netip.AddrPort{}
	}
	vip, known := p.ClusterIP(name, port)
	switch {
	case known && vip.IsValid():
		return routeOfVIP(p, vip)
	case known:
		return refused, vip
	case certain:
		return unknown, vip
	}
	return direct, vip
}

func routeOfVIP(p *proxy.Proxy, vip netip.AddrPort) (route, netip.AddrPort) {
	known, usable := p.Serves(vip)
	switch {
	case usable:
		return service, vip
	case known:
		return refused, vip
	}
	return direct, vip
}
