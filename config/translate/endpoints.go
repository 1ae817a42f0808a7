package translate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/usherproxy/usher/config"
)

// candidate is an endpoint with all input for its selection.
type candidate struct {
	config.Endpoint
	hints  *discoveryv1.EndpointHints
	labels map[string]string // of its node, from the slice
}

// gather returns the endpoints of each of ports, sorted by address, without duplicates of address and port.
func gather(ports []config.ServicePort, mine []*discoveryv1.EndpointSlice, refuse forbidden, wrong *report) [][]candidate {
	found := make([][]candidate, len(ports))
	index := make(map[portName]int, len(ports))
	for i := range ports {
		index[portName{ports[i].ID.Port, ports[i].ID.Family}] = i
	}
	left := maxEndpoints
	for _, slice := range byName(mine) {
		family, ok := familyOf(slice.AddressType)
		if !ok {
			continue // FQDN: kube-proxy ignores them too
		}
		p := problemsOf(slice, wrong)
		hosts := hostsOf(slice, family, refuse, p)
		for i, slicePort := range slice.Ports {
			n, ok := index[portName{value(slicePort.Name), family}]
			if !ok || !usable(slicePort, &ports[n], field.NewPath("ports").Index(i), p) {
				continue
			}
			if len(hosts) > left {
				p.add(field.Invalid(field.NewPath("ports").Index(i), value(slicePort.Port), fmt.Sprintf("not used: a Service may have no more than %d pairs of a port and an endpoint", maxEndpoints)))
				continue
			}
			left -= len(hosts)
			found[n] = slices.Grow(found[n], len(hosts))
			for _, h := range hosts {
				h.Addr = netip.AddrPortFrom(h.addr, uint16(*slicePort.Port))
				found[n] = append(found[n], h.candidate)
			}
		}
	}
	for i := range found {
		found[i] = merge(found[i])
	}
	return found
}

// byName returns mine in a deterministic order.
func byName(mine []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	return slices.SortedFunc(slices.Values(mine), func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
}

// problemsOf returns the part of a report about slice.
func problemsOf(slice *discoveryv1.EndpointSlice, wrong *report) *problems {
	return &problems{kind: "EndpointSlice", name: types.NamespacedName{Namespace: slice.Namespace, Name: slice.Name}, report: wrong}
}

func familyOf(t discoveryv1.AddressType) (config.Family, bool) {
	switch t {
	case discoveryv1.AddressTypeIPv4:
		return config.IPv4, true
	case discoveryv1.AddressTypeIPv6:
		return config.IPv6, true
	}
	return 0, false
}

// portName identifies a port of one Service.
type portName struct {
	name   string
	family config.Family
}

// usable reports whether slicePort has a valid number, and the protocol of port.
func usable(slicePort discoveryv1.EndpointPort, port *config.ServicePort, path *field.Path, p *problems) bool {
	number := value(slicePort.Port)
	if number == 0 {
		return false // null means "all ports", which has no meaning for a Service
	}
	if number < 1 || number > 65535 {
		p.add(field.Invalid(path.Child("port"), number, "must be between 1 and 65535, inclusive"))
		return false
	}
	if protocol := protocolOf(value(slicePort.Protocol)); protocol != port.Protocol {
		p.add(field.Invalid(path.Child("protocol"), protocol,
			"must be "+string(port.Protocol)+", the protocol of port "+port.ID.String()))
		return false
	}
	return true
}

// host is an endpoint before it has a port.
type host struct {
	candidate
	addr     netip.Addr
	hostname string // "" if it has none
}

// hostsOf returns the endpoints of slice with allowed addresses, sorted by address.
func hostsOf(slice *discoveryv1.EndpointSlice, family config.Family, refuse forbidden, p *problems) []host {
	out := make([]host, 0, len(slice.Endpoints))
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		path := func() *field.Path { return field.NewPath("endpoints").Index(i).Child("addresses") }
		if len(e.Addresses) == 0 {
			p.add(field.Required(path(), "must contain at least 1 address"))
			continue
		}
		a, ok := ParseAddr(e.Addresses[0]) // consumers must not use the others
		if !ok || config.FamilyOf(a) != family {
			p.add(field.Invalid(path().Index(0), e.Addresses[0], "must be an "+family.String()+" address"))
			continue
		}
		if err := refuse.address(nil, a); err != nil {
			p.add(refuse.address(path().Index(0), a))
			continue
		}
		h := host{candidate{endpointOf(e), e.Hints, e.DeprecatedTopology}, a, value(e.Hostname)}
		h.Pod = podOf(e.TargetRef, slice.Namespace, i, p)
		out = append(out, h)
	}
	slices.SortStableFunc(out, func(a, b host) int { return a.addr.Compare(b.addr) }) // once for all ports
	return out
}

// endpointOf fills in the defaults of the conditions, as their API documentation defines them.
func endpointOf(e *discoveryv1.Endpoint) config.Endpoint {
	return config.Endpoint{
		Node:        value(e.NodeName),
		Zone:        value(e.Zone),
		Ready:       e.Conditions.Ready == nil || *e.Conditions.Ready,
		Serving:     e.Conditions.Serving == nil || *e.Conditions.Serving,
		Terminating: value(e.Conditions.Terminating),
	}
}

// podOf returns the Pod that endpoint i of a slice in namespace refers to; "" if there is none, or if the slice may not
// name it. The API server does not validate a targetRef, but usher shows the Pod, and may connect to it with the
// credentials of usher's user.
func podOf(ref *corev1.ObjectReference, namespace string, i int, p *problems) string {
	if ref == nil || ref.Kind != "Pod" {
		return ""
	}
	path := func() *field.Path { return field.NewPath("endpoints").Index(i).Child("targetRef") }
	if ref.Namespace != namespace && ref.Namespace != "" {
		p.add(field.Invalid(path().Child("namespace"), ref.Namespace, "must be "+namespace+", the slice's own"))
		return ""
	}
	if wrong := validation.IsDNS1123Subdomain(ref.Name); len(wrong) > 0 {
		p.add(field.Invalid(path().Child("name"), ref.Name, wrong[0]))
		return ""
	}
	return namespace + "/" + ref.Name
}

// merge sorts list by address, and keeps one candidate of each address: the first, unless a later one is better.
func merge(list []candidate) []candidate {
	slices.SortStableFunc(list, func(a, b candidate) int { return a.Addr.Compare(b.Addr) })
	kept := list[:0]
	for _, c := range list {
		last := len(kept) - 1
		switch {
		case last < 0 || kept[last].Addr != c.Addr:
			kept = append(kept, c)
		case better(c.Endpoint, kept[last].Endpoint):
			kept[last] = c
		}
	}
	return kept
}

// better reports whether a is a better description than b of the endpoint at their common address. An endpoint is in
// two slices while the controller moves it. Two Pods have one address while the first is terminating and the second
// already runs.
func better(a, b config.Endpoint) bool {
	switch {
	case a.Terminating != b.Terminating:
		return b.Terminating
	case a.Ready != b.Ready:
		return a.Ready
	case a.Serving != b.Serving:
		return a.Serving
	}
	return false
}
