package socks

import (
	"errors"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/proxy"
)

// serviceOf returns the Service that a host name denotes; ok is false if the name does not have the form of a Service's
// name. certain means that the name can denote nothing else. A name of one label is a Service in the namespace default.
// domain is the cluster's domain.
func serviceOf(host, domain string) (name types.NamespacedName, certain, ok bool) {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	host, full := strings.CutSuffix(host, "."+domain)
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

// Errors of requests that are for Services.
var (
	errUnknown = errors.New("the Service does not exist")
	errRefused = errors.New("the Service does not have this port, or no endpoints for it")
)

// routeOf returns the VIP for a request to host, a name or an address. vip is invalid if the request is not for a
// Service. If a name may be that of a Service, routeOf waits for the initial sync; for an address, it does not.
func (s *Server) routeOf(host string, port uint16) (vip netip.AddrPort, err error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return routeOfVIP(s.proxy, netip.AddrPortFrom(addr.Unmap(), port))
	}
	name, certain, ok := serviceOf(host, s.domain)
	if ok || certain {
		s.waitForSync()
	}
	known := false
	if ok {
		vip, known = s.proxy.ClusterIP(name, port)
	}
	switch {
	case vip.IsValid():
		return routeOfVIP(s.proxy, vip)
	case known:
		return vip, errRefused
	case certain:
		return vip, errUnknown
	}
	return vip, nil
}

func routeOfVIP(p *proxy.Proxy, vip netip.AddrPort) (netip.AddrPort, error) {
	known, usable := p.Serves(vip)
	switch {
	case usable:
		return vip, nil
	case known:
		return netip.AddrPort{}, errRefused
	}
	return netip.AddrPort{}, nil
}
