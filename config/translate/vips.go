package translate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/usherproxy/usher/config"
)

// clusterIPs returns the cluster IPs of svc, at most one of each family.
func clusterIPs(svc *corev1.Service, p *problems) []netip.Addr {
	path := field.NewPath("spec", "clusterIPs")
	all := svc.Spec.ClusterIPs
	if len(all) == 0 { // an object from before dual stack
		all = []string{svc.Spec.ClusterIP}
	}
	var out []netip.Addr
	for i, s := range all {
		a, ok := ParseAddr(s)
		switch {
		case !ok:
			p.add(field.Invalid(path.Index(i), s, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"))
		case a.IsUnspecified() || a.IsMulticast() || a.IsLoopback():
			p.add(Special(path.Index(i), a))
		case len(out) > 0 && config.FamilyOf(out[0]) == config.FamilyOf(a):
			p.add(field.Invalid(path, all, "may specify no more than one IP for each IP family"))
		default:
			out = append(out, a)
		}
	}
	return out
}

// externalVIPs returns the external and load balancer IPs of svc in the families of clusterIPs, without ports.
func externalVIPs(svc *corev1.Service, clusterIPs []netip.Addr, p *problems) []config.VIP {
	var out []config.VIP
	seen := map[netip.Addr]bool{}
	served := func(a netip.Addr) bool {
		return slices.ContainsFunc(clusterIPs, func(ip netip.Addr) bool { return config.FamilyOf(ip) == config.FamilyOf(a) })
	}
	add := func(v config.VIP) (added bool) {
		if seen[v.Addr] || !served(v.Addr) {
			return false
		}
		seen[v.Addr] = true
		out = append(out, v)
		return true
	}
	for i, s := range svc.Spec.ExternalIPs {
		path := field.NewPath("spec", "externalIPs").Index(i)
		switch a, ok := externalAddr(s, path, p); {
		case !ok:
		case !served(a) && len(clusterIPs) > 0:
			p.add(field.Invalid(path, s, fmt.Sprintf("not served: the Service has no cluster IP of the family %s", config.FamilyOf(a))))
		default:
			add(config.VIP{Kind: config.ExternalIP, Addr: a})
		}
	}
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return out
	}
	ranges := map[config.Family][]netip.Prefix{}
	for i, ingress := range svc.Status.LoadBalancer.Ingress {
		if ingress.IP == "" || value(ingress.IPMode) == corev1.LoadBalancerIPModeProxy {
			continue // a host name, or a balancer that delivers to the node port itself
		}
		path := field.NewPath("status", "loadBalancer", "ingress").Index(i).Child("ip")
		a, ok := externalAddr(ingress.IP, path, p)
		if !ok {
			continue
		}
		family := config.FamilyOf(a)
		if _, known := ranges[family]; !known {
			ranges[family] = sourceRanges(svc, family, p)
		}
		sources := ranges[family]
		if !add(config.VIP{Kind: config.LoadBalancerIP, Addr: a, Sources: sources}) {
			continue
		}
		counts := func(n netip.Prefix) bool { return n == nobody || config.FamilyOf(n.Addr()) == family }
		if len(sources) > 0 && !slices.ContainsFunc(sources, counts) {
			p.add(field.Invalid(field.NewPath("spec", "loadBalancerSourceRanges"), svc.Spec.LoadBalancerSourceRanges,
				fmt.Sprintf("no %s range: no client can use the load balancer IP %s; add a range, or remove all", family, a)))
		}
	}
	return out
}

// externalAddr parses s. It refuses addresses whose portal would redirect this node's own traffic, such as loopback
// addresses.
func externalAddr(s string, path *field.Path, p *problems) (netip.Addr, bool) {
	a, ok := ParseAddr(s)
	if !ok {
		p.add(field.Invalid(path, s, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"))
		return a, false
	}
	if err := Special(path, a); err != nil {
		p.add(err)
		return a, false
	}
	return a, true
}

// vips returns the VIPs of port in the family of clusterIP, without duplicate addresses. An address in several fields
// is served as the first kind of VIP, in the order of kube-proxy's rules.
func vips(svc *corev1.Service, port *corev1.ServicePort, clusterIP netip.Addr, external []config.VIP, path *field.Path, p *problems) []config.VIP {
	family, number := config.FamilyOf(clusterIP), uint16(port.Port)
	out := []config.VIP{{Kind: config.ClusterIP, Addr: clusterIP, Port: number}}
	for _, v := range external {
		if config.FamilyOf(v.Addr) != family || v.Addr == clusterIP {
			continue
		}
		v.Port = number
		out = append(out, v)
	}
	if hasNodePort(svc, port, path, p) {
		any := netip.IPv4Unspecified()
		if family == config.IPv6 {
			any = netip.IPv6Unspecified()
		}
		out = append(out, config.VIP{Kind: config.NodePort, Addr: any, Port: uint16(port.NodePort)})
	}
	return out
}

// hasNodePort reports whether port is served on the node's addresses. A Service of type LoadBalancer has no node port
// if it was created with allocateLoadBalancerNodePorts: false.
func hasNodePort(svc *corev1.Service, port *corev1.ServicePort, path *field.Path, p *problems) bool {
	if svc.Spec.Type != corev1.ServiceTypeNodePort && svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return false
	}
	if port.NodePort < 0 || port.NodePort > 65535 {
		p.add(field.Invalid(path.Child("nodePort"), port.NodePort, "must be between 1 and 65535, inclusive"))
		return false
	}
	return port.NodePort != 0
}

// sourceRanges returns the networks whose clients may connect to a load balancer IP of the family; none means all
// clients.
//
// Ranges of the other family are kept, because an empty list would allow all clients. If there are only such ranges, no
// client of this family is allowed; kube-proxy allows all. An unreadable range matches no client. A range of all
// addresses of this family empties the list. anyFamily has no such range.
func sourceRanges(svc *corev1.Service, family config.Family, p *problems) []netip.Prefix {
	var out []netip.Prefix
	for i, s := range svc.Spec.LoadBalancerSourceRanges {
		s = strings.TrimSpace(s) // the API allows it
		n, ok := parsePrefix(s)
		if !ok {
			path := field.NewPath("spec", "loadBalancerSourceRanges").Index(i)
			p.add(field.Invalid(path, s, "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"))
			n = nobody
		}
		if n.Bits() == 0 && config.FamilyOf(n.Addr()) == family {
			return nil
		}
		out = append(out, n)
	}
	return out
}

const anyFamily config.Family = 0

// nobody is a network without clients.
var nobody = netip.PrefixFrom(netip.IPv6Unspecified(), 128)
