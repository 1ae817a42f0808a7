package socks

import (
	"errors"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/proxy"
)

// serviceOf returns the Service of a host name, if it has the form of one, and whether it can be nothing else
// (certain). A name of one label is a Service of the namespace default. domain is the cluster's.
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

// routeOf returns the VIP for a request to host, a name or an address. It is invalid if the request is not
// for a Service. Names that may be those of Services wait for the initial sync; addresses do not.
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
