package balance

import (
	"encoding/binary"
	"net/netip"
)

// newSourceHash gives a client, whatever its port, the same endpoint each time for as long as
// the endpoints and their weights are the same.
func newSourceHash(s *Set) order {
	return &hashed{sharesOf(s), ByClient}
}

// newDestinationHash gives all clients of a VIP the same endpoint, and those of other VIPs
// perhaps another one. A node port is one VIP, at whichever address of the node.
func newDestinationHash(s *Set) order {
	return &hashed{sharesOf(s), ByVIP}
}

// hashed hashes an address. Of an endpoint that is passed over the clients are hashed once more,
// so that they spread over the others, and no others move.
type hashed struct {
	shares
	why Reason
}

func (h *hashed) look(s *Set, l look, i uint32) *Endpoint {
	key := l.Client
	if h.why == ByVIP {
		key = l.VIP
	}
	return s.endpoints[h.draw(hash(key, i))]
}

func (h *hashed) reason() Reason { return h.why }

// hash returns the i-th hash of an address: the same on each node and after each restart, so
// that it does not matter by which node a client comes.
func hash(a netip.Addr, i uint32) uint64 {
	b := a.As16()
	return mix(mix(binary.BigEndian.Uint64(b[:8])+uint64(i)) ^ binary.BigEndian.Uint64(b[8:]))
}
