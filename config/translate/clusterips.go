package translate

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// ClusterIPs is a set of cluster IPs, which no endpoint may have. No host has such an address, so usher would receive
// its own connection to it. The set counts the Services that have each address.
//
// It does not contain external and load balancer IPs. They may be addresses of nodes, where endpoints listen too: an
// ingress controller on the host's network usually has the Service's external IP. Nor does it contain node ports: the
// addresses of nodes are not known here.
//
// A nil ClusterIPs is empty. Several goroutines may read it while no goroutine changes it.
type ClusterIPs map[netip.Addr]int

// Add adds the cluster IPs of a Service to the set.
func (s ClusterIPs) Add(ips []netip.Addr) {
	for _, a := range ips {
		s[a]++
	}
}

// Remove removes the cluster IPs of a Service, as they were added. Those that other Services also have stay in the set.
func (s ClusterIPs) Remove(ips []netip.Addr) {
	for _, a := range ips {
		if s[a]--; s[a] <= 0 {
			delete(s, a)
		}
	}
}

// ClusterIPsOf returns the served cluster IPs of svc, at most one of each family: none if usher does not proxy it. It
// is much faster than Service.
func ClusterIPsOf(svc *corev1.Service, proxyName string) []netip.Addr {
	valid := func(p corev1.ServicePort) bool { return validPort(&p, nil, &problems{}) }
	if !Proxied(svc, proxyName) || !slices.ContainsFunc(svc.Spec.Ports, valid) {
		return nil
	}
	return clusterIPs(svc, &problems{})
}
