package proxy

import (
	"math/rand/v2"
	"time"
)

// keepaliveProbes and keepaliveInterval are how often and at what distance a
// silent peer is probed before it counts as gone.
const (
	keepaliveProbes   = 3
	keepaliveInterval = 30 * time.Second
)

// otherPorts returns the ports to try when the preferred one is taken, in a random
// order: those that the user allows, or 0 for any.
func (p *Proxy) otherPorts() []uint16 {
	if p.Ports.First == 0 {
		return []uint16{0}
	}
	var ports []uint16
	for _, i := range rand.Perm(int(p.Ports.Last-p.Ports.First) + 1) {
		ports = append(ports, p.Ports.First+uint16(i))
	}
	return ports
}
