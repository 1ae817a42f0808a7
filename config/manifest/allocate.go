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

// This file allocates cluster IPs, node ports and load balancer IPs to Services that name none, as a control plane
// does. The first choice depends only on the Service's name and, for a node port, on the port. If it is taken, the next
// free one is used. So restarts usually give the same result, without stored state.

// Ports are the ports from First to Last.
type Ports struct{ First, Last uint16 }

// DefaultNodePorts are an API server's defaults.
var DefaultNodePorts = Ports{30000, 32767}

// String returns "30000-32767".
func (p Ports) String() string { return fmt.Sprintf("%d-%d", p.First, p.Last) }

// give returns a free number from first to last, or false if there is none. It searches start to last, beginning at a
// number that seed determines, and then the numbers from first on.
//
// As in Kubernetes, the numbers below start are for Services that name theirs, so that conflicts are rare.
func give(first, start, last uint64, seed string, taken func(uint64) bool) (uint64, bool) {
	h := fnv.New64a()
	h.Write([]byte(seed))
	size := last - start + 1
	choice := mix(h.Sum64()) % size
	for i := range last - first + 1 {
		at := start + (choice+i)%size
		if i >= size {
			at = first + i - size
		}
		if !taken(at) {
			return at, true
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

// band returns how many of size numbers are for Services that name theirs: none of up to 16, otherwise 1/oneOf, but
// between 16 and most. For addresses these are 1/16 and 256 (KEP-3070), for node ports 1/32 and 128 (KEP-3668).
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

// wantsHealthCheck reports whether svc has a health check node port.
func wantsHealthCheck(spec *corev1.ServiceSpec) bool {
	return spec.Type == corev1.ServiceTypeLoadBalancer && spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// lacksNodePorts reports whether svc lacks a node port or its health check node port.
func lacksNodePorts(spec *corev1.ServiceSpec) bool {
	return wantsHealthCheck(spec) && spec.HealthCheckNodePort == 0 ||
		wantsNodePorts(spec) && slices.ContainsFunc(spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort == 0 })
}

// withNodePorts returns svc with a node port wherever it lacks one. give returns the node port for p, one of the ports
// of out, or the health check node port if p is nil. If give returns 0, the field stays 0.
func withNodePorts(svc *corev1.Service, give func(out *corev1.Service, p *corev1.ServicePort) int32) *corev1.Service {
	if !lacksNodePorts(&svc.Spec) {
		return svc
	}
	out := *svc
	out.Spec.Ports = slices.Clone(svc.Spec.Ports)
	for i := range out.Spec.Ports {
		if p := &out.Spec.Ports[i]; wantsNodePorts(&svc.Spec) && p.NodePort == 0 {
			p.NodePort = give(&out, p)
		}
	}
	if wantsHealthCheck(&svc.Spec) && svc.Spec.HealthCheckNodePort == 0 {
		out.Spec.HealthCheckNodePort = give(&out, nil)
	}
	return &out
}

// hadNodePorts returns a function that returns old's node ports, except those that svc names, even for another port.
func hadNodePorts(old, svc *corev1.Service) func(_ *corev1.Service, p *corev1.ServicePort) int32 {
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
	return func(_ *corev1.Service, p *corev1.ServicePort) int32 {
		switch {
		case p != nil:
			return had[key{p.Protocol, p.Port}]
		case named[key{corev1.ProtocolTCP, old.Spec.HealthCheckNodePort}]:
			return 0
		}
		return old.Spec.HealthCheckNodePort
	}
}

// allocateNodePorts returns svc with its missing node ports, and appends their claims to got. If svc already has a node
// port for the same port number and another protocol, the port gets the same one, if it is free.
func (r *resolver) allocateNodePorts(svc *corev1.Service, got *[]claim) (*corev1.Service, error) {
	owner, full := name{Namespace: svc.Namespace, Name: svc.Name}, false
	size := uint64(r.nodePorts.Last-r.nodePorts.First) + 1
	out := withNodePorts(svc, func(out *corev1.Service, p *corev1.ServicePort) int32 {
		if full {
			return 0
		}
		protocol, seed := corev1.ProtocolTCP, owner.String()+" health checks"
		if p != nil {
			protocol, seed = p.Protocol, owner.String()+":"+strconv.Itoa(int(p.Port))
			for _, other := range out.Spec.Ports {
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

// release removes a Service's allocated load balancer IPs, and returns them.
func (r *resolver) release(n name) (had []netip.Addr) {
	had = r.balanced[n]
	delete(r.balanced, n)
	for _, a := range had {
		delete(r.balancers, a)
	}
	return had
}

// needsBalancer reports whether svc needs load balancer IPs from usher. had are those that it has from usher.
func (r *resolver) needsBalancer(svc *corev1.Service, had []netip.Addr) bool {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || svc.Spec.LoadBalancerClass != nil {
		return false
	}
	in := svc.Status.LoadBalancer.Ingress
	return len(in) == 0 || len(had) > 0 && in[0].IP == had[0].String()
}

// keepIPs reserves those of svc's previous load balancer IPs that it still needs, so that no other Service gets them.
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

// balance returns svc with load balancer IPs, if it needs some: its loadBalancerIP, its previous ones, or free ones.
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

// withoutIPs returns svc without load balancer IPs; svc itself if it has none.
func withoutIPs(svc *corev1.Service) *corev1.Service {
	if len(svc.Status.LoadBalancer.Ingress) == 0 {
		return svc
	}
	out := *svc
	out.Status.LoadBalancer.Ingress = nil
	return &out
}

// explicitIPs returns the external and load balancer IPs that Services name, each with one of these Services. It is the
// Service that has the IP, or the first one if none has it.
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
