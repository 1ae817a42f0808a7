package translate

import (
	"net/netip"

	"github.com/usherproxy/usher/config"
)

// ClusterIPs is a set of cluster IPs, which no endpoint may have: nothing else has
// such an address, so a connection to it would come back to usher.
//
// External and load balancer IPs are not in it, since they may be addresses of
// nodes, on which endpoints listen, too: that of an ingress controller on the
// host's network is mostly the Service's external IP. Node ports are not in it
// either: which addresses a node has is not known here.
//
// The zero value is empty, and so is a nil pointer. A ClusterIPs may be read by
// several goroutines while nobody changes it.
type ClusterIPs struct {
	ports map[netip.Addr]int // how many service ports have it
}

// Add puts the cluster IPs of svc into the set.
func (s *ClusterIPs) Add(svc config.Service) { s.count(svc, 1) }

// Remove takes out the cluster IPs of svc, which must be as it was added. What
// other Services have too stays in the set.
func (s *ClusterIPs) Remove(svc config.Service) { s.count(svc, -1) }

func (s *ClusterIPs) count(svc config.Service, n int) {
	if s.ports == nil {
		s.ports = map[netip.Addr]int{}
	}
	for _, port := range svc.Ports {
		a := port.VIPs[0].Addr // the cluster IP
		if s.ports[a] += n; s.ports[a] <= 0 {
			delete(s.ports, a)
		}
	}
}

// Has reports whether a is a cluster IP.
func (s *ClusterIPs) Has(a netip.Addr) bool { return s != nil && s.ports[a] > 0 }
