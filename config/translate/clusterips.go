package translate

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// ClusterIPs is a set of cluster IPs, which no endpoint may have: nothing else has
// such an address, so a connection to it would come back to usher. It counts how
// many Services have each.
//
// External and load balancer IPs are not in it, since they may be addresses of
// nodes, on which endpoints listen, too: that of an ingress controller on the
// host's network is mostly the Service's external IP. Node ports are not in it
// either: which addresses a node has is not known here.
//
// A nil ClusterIPs is empty. It may be read by several goroutines while nobody
// changes it.
type ClusterIPs map[netip.Addr]int

// Add puts the cluster IPs of a Service into the set.
func (s ClusterIPs) Add(ips []netip.Addr) {
	for _, a := range ips {
		s[a]++
	}
}

// Remove takes out the cluster IPs of a Service, as they were added. What other
// Services have too stays in the set.
func (s ClusterIPs) Remove(ips []netip.Addr) {
	for _, a := range ips {
		if s[a]--; s[a] <= 0 {
			delete(s, a)
		}
	}
}

// ClusterIPsOf returns the cluster IPs at which svc is served, at most one of each
// family: none if usher does not proxy it. It takes far less than Service.
func ClusterIPsOf(svc *corev1.Service, proxyName string) []netip.Addr {
	valid := func(p corev1.ServicePort) bool { return validPort(&p, nil, &problems{}) }
	if !Proxied(svc, proxyName) || !slices.ContainsFunc(svc.Spec.Ports, valid) {
		return nil
	}
	return clusterIPs(svc, &problems{})
}
