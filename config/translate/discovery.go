package translate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/usherproxy/usher/config"
)

// Discovery returns how clients find svc by its name, and the problems of the endpoints that it omits. It returns nil
// if svc should have a cluster IP, but does not have one yet.
//
// It does not matter which proxy serves svc. Service returns the problems of svc itself.
func Discovery(svc *corev1.Service, all []*discoveryv1.EndpointSlice, opts Options) (*config.Discovery, []Problem) {
	out := &config.Discovery{Ports: discoveryPorts(svc)}
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		out.ExternalName = strings.TrimSuffix(svc.Spec.ExternalName, ".")
	case svc.Spec.ClusterIP == corev1.ClusterIPNone:
		var wrong report
		out.Endpoints = discoveryEndpoints(svc, all, forbidden{loopback: !opts.AllowLoopbackEndpoints, networks: opts.ForbiddenEndpoints}, &wrong)
		return out, wrong.list()
	case svc.Spec.ClusterIP == "":
		return nil, nil
	default:
		if out.ClusterIPs = clusterIPs(svc, &problems{}); len(out.ClusterIPs) == 0 {
			return nil, nil
		}
	}
	return out, nil
}

// discoveryPorts returns the ports of svc that are valid, in its order.
func discoveryPorts(svc *corev1.Service) []config.DiscoveryPort {
	var out []config.DiscoveryPort
	for i := range svc.Spec.Ports {
		if p := &svc.Spec.Ports[i]; validPort(p, nil, &problems{}) {
			out = append(out, config.DiscoveryPort{Name: p.Name, Protocol: protocolOf(p.Protocol), Number: uint16(p.Port)})
		}
	}
	return out
}

// discoveryEndpoints returns the published endpoints of a headless Service.
func discoveryEndpoints(svc *corev1.Service, all []*discoveryv1.EndpointSlice, refuse forbidden, wrong *report) (out []config.DiscoveryEndpoint) {
	for _, slice := range byName(all) {
		family, ok := familyOf(slice.AddressType)
		if !ok || !belongs(slice, svc) {
			continue
		}
		p := problemsOf(slice, wrong)
		ports := slicePorts(slice, p)
		for _, h := range hostsOf(slice, family, refuse, p) {
			if h.Ready || svc.Spec.PublishNotReadyAddresses {
				out = append(out, config.DiscoveryEndpoint{Addr: h.addr, Hostname: h.hostname, Ports: ports})
			}
		}
	}
	out, ok := mergeEndpoints(out)
	if !ok {
		p := &problems{kind: "Service", name: types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}, report: wrong}
		p.add(field.Invalid(field.NewPath("metadata", "name"), svc.Name, fmt.Sprintf("endpoints in several slices may have no more than %d ports in all; DNS returns none", maxEndpoints)))
	}
	return out
}

// slicePorts returns the ports on which the endpoints of slice listen. All these endpoints share the result.
func slicePorts(slice *discoveryv1.EndpointSlice, p *problems) []config.DiscoveryPort {
	var out []config.DiscoveryPort
	for i, port := range slice.Ports {
		number := value(port.Port)
		if number == 0 {
			continue // null means "all ports", which have no name
		}
		if number < 1 || number > 65535 {
			path := field.NewPath("ports").Index(i).Child("port")
			p.add(field.Invalid(path, number, "must be between 1 and 65535, inclusive"))
			continue
		}
		out = append(out, config.DiscoveryPort{Name: value(port.Name), Protocol: protocolOf(value(port.Protocol)), Number: uint16(number)})
	}
	return out
}

// mergeEndpoints sorts all and merges those that are in several slices: Pods that give a named port different numbers
// are in different slices. It returns false if they have more than maxEndpoints ports in all.
func mergeEndpoints(all []config.DiscoveryEndpoint) ([]config.DiscoveryEndpoint, bool) {
	type key struct {
		addr     netip.Addr
		hostname string
	}
	at := make(map[key]int, len(all))
	merged := map[int]map[config.DiscoveryPort]bool{} // ports of endpoints in several slices, by index in out
	last := map[int]*config.DiscoveryPort{}           // the list that was merged last, by index in out
	left := maxEndpoints
	out := all[:0]
	for _, e := range all {
		i, twice := at[key{e.Addr, e.Hostname}]
		if !twice {
			at[key{e.Addr, e.Hostname}] = len(out)
			out = append(out, e)
			continue
		}
		if len(e.Ports) == 0 || len(out[i].Ports) > 0 && &e.Ports[0] == &out[i].Ports[0] || &e.Ports[0] == last[i] {
			continue // twice in one slice
		}
		last[i] = &e.Ports[0]
		ports := e.Ports
		if merged[i] == nil {
			merged[i] = map[config.DiscoveryPort]bool{}
			ports, out[i].Ports = slices.Concat(out[i].Ports, e.Ports), nil
		}
		for _, p := range ports {
			if !merged[i][p] {
				if left--; left < 0 {
					return nil, false
				}
				merged[i][p] = true
				out[i].Ports = append(out[i].Ports, p)
			}
		}
	}
	slices.SortFunc(out, func(a, b config.DiscoveryEndpoint) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Hostname, b.Hostname))
	})
	return out, true
}
