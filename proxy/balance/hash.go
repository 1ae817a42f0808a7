package balance

import (
	"encoding/binary"
	"net/netip"
)

// newSourceHash returns an order that gives a client, whatever its port, the same endpoint each time while the
// endpoints and their weights stay the same.
func newSourceHash(s *Set) order {
	return &hashed{shares: sharesOf(s)}
}

// newDestinationHash returns an order that gives all clients of a VIP the same endpoint, and those of other VIPs
// possibly another one. A node port is one VIP on all addresses of the node.
func newDestinationHash(s *Set) order {
	return &hashed{shares: sharesOf(s), byVIP: true}
}

// hashed hashes an address. The clients of a skipped endpoint are hashed again, so that they spread over the
// others, and no other clients move.
type hashed struct {
	shares
	byVIP bool // and not by client
}

func (h *hashed) look(s *Set, l look, i uint32) *Endpoint {
	key := l.Client
	if h.byVIP {
		key = l.VIP
	}
	return s.endpoints[h.draw(hash(key, i))]
}

// hash returns the i-th hash of an address. It is the same on each node and after each restart, so a client gets the
// same endpoint through any node.
func hash(a netip.Addr, i uint32) uint64 {
	b := a.As16()
	return mix(mix(binary.BigEndian.Uint64(b[:8])+uint64(i)) ^ binary.BigEndian.Uint64(b[8:]))
}
