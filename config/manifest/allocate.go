package manifest

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/usherproxy/usher/config/translate"
)

// Allocation of cluster IPs, node ports and IPs of load balancers for Services that name none, as a control plane does.
// The result depends only on the Service's name or, if that choice is taken, is the next free one. So it is the same
// each time, without stored state.

// Ports are the ports from First to Last.
type Ports struct{ First, Last uint16 }

// DefaultNodePorts are an API server's defaults.
var DefaultNodePorts = Ports{30000, 32767}

// String returns "30000-32767".
func (p Ports) String() string { return fmt.Sprintf("%d-%d", p.First, p.Last) }

// give returns the first free number, starting at one from start on that seed determines; those below start come last.
// It returns false if none is free.
//
// As in Kubernetes, the lowest numbers are for Services that name theirs, so that conflicts are rare.
func give(first, start, last uint64, seed string, taken func(uint64) bool) (uint64, bool) {
	h := fnv.New64a()
	h.Write([]byte(seed))
	at := start + mix(h.Sum64())%(last-start+1)
	for range last - first + 1 {
		if !taken(at) {
			return at, true
		}
		if at++; at > last {
			at = first
		}
	}
	return 0, false
}

// mix spreads the bits of a hash over all of them: FNV alone leaves similar names close together.
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	return h
}

// address returns an address of network, but not the network or broadcast address. Of a large network it uses only the
// lower 2^32 addresses.
func address(network netip.Prefix, name string, taken func(netip.Addr) bool) (netip.Addr, bool) {
	last := uint64(1)<<min(network.Addr().BitLen()-network.Bits(), 32) - 1
	if network.Addr().Is4() {
		last-- // without the broadcast address
	}
	at, ok := give(1, 1+band(last, 16, 256), last, name, func(n uint64) bool { return taken(offset(network, n)) })
	if !ok {
		return netip.Addr{}, false
	}
	return offset(network, at), true
}

// band returns how many of size numbers are for Services that name theirs: the fraction 1/oneOf, but between 16 and
// most. For addresses it is 1/16 and 256 (KEP-3070), for node ports 1/32 and 128 (KEP-3668).
func band(size, oneOf, most uint64) uint64 {
	if size <= 16 {
		return 0
	}
	return min(max(16, size/oneOf), most)
}

// wantsNodePorts reports whether the ports of svc have node ports.
func wantsNodePorts(spec *corev1.ServiceSpec) bool {
	return spec.Type == corev1.ServiceTypeNodePort ||
		spec.Type == corev1.ServiceTypeLoadBalancer && (spec.AllocateLoadBalancerNodePorts == nil || *spec.AllocateLoadBalancerNodePorts)
}

// wantsHealthCheck reports whether svc has a port for health checks.
func wantsHealthCheck(spec *corev1.ServiceSpec) bool {
	return spec.Type == corev1.ServiceTypeLoadBalancer && spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// lacksNodePorts reports whether svc needs node ports.
func lacksNodePorts(spec *corev1.ServiceSpec) bool {
	return wantsHealthCheck(spec) && spec.HealthCheckNodePort == 0 ||
		wantsNodePorts(spec) && slices.ContainsFunc(spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort == 0 })
}

// withNodePorts returns svc with a node port where one is needed and missing. give returns it for a port, and for
// health checks if called with nil; 0 leaves the field unchanged.
func withNodePorts(svc *corev1.Service, give func(*corev1.ServicePort) int32) *corev1.Service {
	if !lacksNodePorts(&svc.Spec) {
		return svc
	}
	out := *svc
	out.Spec.Ports = slices.Clone(svc.Spec.Ports)
	for i := range out.Spec.Ports {
		if p := &out.Spec.Ports[i]; wantsNodePorts(&svc.Spec) && p.NodePort == 0 {
			p.NodePort = give(p)
		}
	}
	if wantsHealthCheck(&svc.Spec) && svc.Spec.HealthCheckNodePort == 0 {
		out.Spec.HealthCheckNodePort = give(nil)
	}
	return &out
}

// hadNodePorts returns a function that returns old's node ports, except those that svc names, perhaps for another port.
func hadNodePorts(old, svc *corev1.Service) func(*corev1.ServicePort) int32 {
	type key struct {
		protocol corev1.Protocol
		number   int32
	}
	named := map[key]bool{{corev1.ProtocolTCP, svc.Spec.HealthCheckNodePort}: true}
	for _, p := range svc.Spec.Ports {
		named[key{p.Protocol, p.NodePort}] = true
	}
	had := map[key]int32{} // by protocol and port
	for _, p := range old.Spec.Ports {
		if !named[key{p.Protocol, p.NodePort}] {
			had[key{p.Protocol, p.Port}] = p.NodePort
		}
	}
	return func(p *corev1.ServicePort) int32 {
		switch {
		case p != nil:
			return had[key{p.Protocol, p.Port}]
		case named[key{corev1.ProtocolTCP, old.Spec.HealthCheckNodePort}]:
			return 0
		}
		return old.Spec.HealthCheckNodePort
	}
}

// allocateNodePorts returns svc with the missing node ports, which it adds to got. Ports with one number get the same node port for all
// protocols, if that is free, as in Kubernetes.
func (r *resolver) allocateNodePorts(svc *corev1.Service, got *[]claim) (*corev1.Service, error) {
	owner, full := name{Namespace: svc.Namespace, Name: svc.Name}, false
	size := uint64(r.nodePorts.Last-r.nodePorts.First) + 1
	out := withNodePorts(svc, func(p *corev1.ServicePort) int32 {
		if full {
			return 0
		}
		protocol, seed := corev1.ProtocolTCP, owner.String()+" health checks"
		if p != nil {
			protocol, seed = p.Protocol, owner.String()+":"+strconv.Itoa(int(p.Port))
			for _, other := range svc.Spec.Ports {
				same := claim{protocol: protocol, nodePort: other.NodePort}
				if _, taken := r.owners[same]; other.Port == p.Port && other.NodePort != 0 && !taken {
					r.owners[same] = owner
					*got = append(*got, same)
					return other.NodePort
				}
			}
		}
		of := func(n uint64) claim { return claim{protocol: protocol, nodePort: int32(r.nodePorts.First) + int32(n)} }
		at, ok := give(0, band(size, 32, 128), size-1, seed, func(n uint64) bool { _, taken := r.owners[of(n)]; return taken })
		if full = !ok; full {
			return 0
		}
		r.owners[of(at)] = owner
		*got = append(*got, of(at))
		return of(at).nodePort
	})
	if full {
		return out, fmt.Errorf("spec.ports: no free port in node port range %s", r.nodePorts)
	}
	return out, nil
}

// release takes the IPs of a load balancer that a Service has.
func (r *resolver) release(n name) (had []netip.Addr) {
	had = r.balanced[n]
	delete(r.balanced, n)
	for _, a := range had {
		delete(r.balancers, a)
	}
	return had
}

// needsBalancer reports whether svc, which had these IPs of a load balancer, needs some.
func (r *resolver) needsBalancer(svc *corev1.Service, had []netip.Addr) bool {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || svc.Spec.LoadBalancerClass != nil {
		return false
	}
	in := svc.Status.LoadBalancer.Ingress
	return len(in) == 0 || len(had) > 0 && in[0].IP == had[0].String()
}

// keepIPs gives svc those of its previous IPs of a load balancer that it still needs, so that no other Service gets them.
func (r *resolver) keepIPs(n name, svc *corev1.Service, had []netip.Addr) {
	if !r.needsBalancer(svc, had) {
		return
	}
	named, ok := translate.ParseAddr(svc.Spec.LoadBalancerIP)
	for _, a := range had {
		needed := ok && a == named || !ok && slices.ContainsFunc(svc.Spec.IPFamilies, func(f corev1.IPFamily) bool { return r.balancerNets.of(familyOf(f)).Contains(a) })
		if needed && !r.owners.taken(a) {
			r.balancers[a], r.balanced[n] = n, append(r.balanced[n], a)
		}
	}
}

// balance sets svc's IPs of a load balancer if it needs some and names none. It keeps previous ones: see keepIPs.
func (r *resolver) balance(n name, svc *corev1.Service, had []netip.Addr, explicit map[netip.Addr]name) (*corev1.Service, error) {
	if !r.needsBalancer(svc, had) {
		return svc, nil
	}
	in := svc.Status.LoadBalancer.Ingress
	var ips []netip.Addr
	taken := func(a netip.Addr) bool {
		namedBy, named := explicit[a]
		owner, given := r.balancers[a]
		if given {
			return owner != n
		}
		return named && namedBy != n || r.owners.taken(a)
	}
	if a, ok := translate.ParseAddr(svc.Spec.LoadBalancerIP); ok {
		if taken(a) {
			return withoutIPs(svc), field.Invalid(field.NewPath("spec", "loadBalancerIP"), svc.Spec.LoadBalancerIP, "provided IP is already allocated to another Service; this Service has no load balancer")
		}
		ips = []netip.Addr{a}
	} else {
		for _, f := range svc.Spec.IPFamilies {
			network := r.balancerNets.of(familyOf(f))
			if !network.IsValid() {
				continue
			}
			if i := slices.IndexFunc(had, func(a netip.Addr) bool { return network.Contains(a) && !taken(a) }); i >= 0 {
				ips = append(ips, had[i])
				continue
			}
			a, ok := address(network, n.String(), taken)
			if !ok {
				r.release(n)
				return withoutIPs(svc), fmt.Errorf("status.loadBalancer: no free address in --load-balancer-ip-cidr %v; this Service has no load balancer", network)
			}
			ips = append(ips, a)
		}
	}
	out := *svc
	out.Status.LoadBalancer.Ingress = nil
	for _, a := range ips {
		r.balancers[a] = n
		out.Status.LoadBalancer.Ingress = append(out.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.String(), IPMode: new(corev1.LoadBalancerIPModeVIP)})
	}
	r.balanced[n] = ips
	if len(had) > 0 && slices.Equal(had, ips) && len(in) == len(ips) {
		return svc, nil // it has them already
	}
	return &out, nil
}

// withoutIPs returns svc without IPs of a load balancer: svc itself if it has none.
func withoutIPs(svc *corev1.Service) *corev1.Service {
	if len(svc.Status.LoadBalancer.Ingress) == 0 {
		return svc
	}
	out := *svc
	out.Status.LoadBalancer.Ingress = nil
	return &out
}

// explicitIPs returns the external and load balancer IPs that Services name, each with one such Service: the one that has
// it, otherwise the first one.
func (r *resolver) explicitIPs() map[netip.Addr]name {
	out := map[netip.Addr]name{}
	for n, s := range r.services {
		if s.object == nil {
			continue
		}
		svc := s.object.service
		ips := slices.Clone(svc.Spec.ExternalIPs)
		if svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
			ips = append(ips, svc.Spec.LoadBalancerIP)
			for _, in := range svc.Status.LoadBalancer.Ingress {
				ips = append(ips, in.IP)
			}
		}
		for _, ip := range ips {
			if a, ok := translate.ParseAddr(ip); ok {
				if other, named := out[a]; !named || r.balancers[a] == n || r.balancers[a] != other && precedence(s.object, r.services[other].object) < 0 {
					out[a] = n
				}
			}
		}
	}
	return out
}
