package translate

import (
	"net/netip"

	"github.com/usherproxy/usher/config"
)

// VIPSet is a set of addresses at which Services are reached. It tells whether
// a connection to an address would come back to usher.
//
// A cluster IP is in the set with all its ports: nothing else has that address.
// External and load balancer IPs are in it with the Service's port only, since
// they may be addresses of nodes, on which endpoints may be too. Node ports are
// not in it: which addresses a node has is not known here.
//
// The zero value is empty, and so is a nil pointer. A VIPSet may be read by
// several goroutines while nobody changes it.
type VIPSet struct {
	clusterIPs map[netip.Addr]int // how many service ports have it
	others     map[vipKey]int
}

type vipKey struct {
	protocol config.Protocol
	addr     netip.AddrPort
}

// NewVIPSet returns the VIPs of services.
func NewVIPSet(services ...config.Service) *VIPSet {
	s := &VIPSet{}
	for _, svc := range services {
		s.Add(svc)
	}
	return s
}

// Add puts the VIPs of svc into the set.
func (s *VIPSet) Add(svc config.Service) { s.count(svc, 1) }

// Remove takes out the VIPs of svc, which must be as it was added. What other
// Services have too stays in the set.
func (s *VIPSet) Remove(svc config.Service) { s.count(svc, -1) }

func (s *VIPSet) count(svc config.Service, n int) {
	if s.clusterIPs == nil {
		s.clusterIPs, s.others = map[netip.Addr]int{}, map[vipKey]int{}
	}
	for _, port := range svc.Ports {
		for _, v := range port.VIPs {
			switch v.Kind {
			case config.ClusterIP:
				change(s.clusterIPs, v.Addr, n)
			case config.ExternalIP, config.LoadBalancerIP:
				change(s.others, vipKey{port.Protocol, v.AddrPort()}, n)
			}
		}
	}
}

func change[K comparable](m map[K]int, k K, n int) {
	if m[k] += n; m[k] <= 0 {
		delete(m, k)
	}
}

// Has reports whether a connection with protocol p to a goes to a VIP.
func (s *VIPSet) Has(p config.Protocol, a netip.AddrPort) bool {
	return s != nil && (s.clusterIPs[a.Addr()] > 0 || s.others[vipKey{p, a}] > 0)
}
