package none

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"strconv"

	"github.com/usherproxy/usher/portal"
)

// ownAddresses are for the Services' dedicated loopback addresses: far from 127.0.0.x, where programs listen
// (127.0.0.53 is systemd-resolved's). There are four million; for a thousand Services the probability that two names
// give the same one is 1/8.
var ownAddresses = netip.MustParsePrefix("127.64.0.0/10")

// addressAllocator assigns each Service a dedicated address, derived from its name. If another Service has that already, it
// tries the next one derived from the name: of two such Services, the first to come gets its first choice.
type addressAllocator struct {
	within netip.Prefix // of IPv4
	owner  map[netip.Addr]string
	addr   map[string]netip.Addr
	users  map[string]map[portal.Target]struct{} // a Service's targets with its address
	used   map[portal.Target]string              // the reverse mapping
}

func newAddressAllocator(within netip.Prefix) *addressAllocator {
	return &addressAllocator{within: within, owner: map[netip.Addr]string{}, addr: map[string]netip.Addr{},
		users: map[string]map[portal.Target]struct{}{}, used: map[portal.Target]string{}}
}

// propose returns the service's address for targets.
func (b *addressAllocator) propose(service string, targets []portal.Target) netip.Addr {
	addr, ok := b.addr[service]
	for i := 0; !ok; i++ {
		addr = b.choice(service, i)
		if _, taken := b.owner[addr]; !taken {
			b.owner[addr], b.addr[service], ok = service, addr, true
		}
	}
	for _, t := range targets {
		if b.used[t] != service {
			b.forget(t)
		}
		if b.users[service] == nil {
			b.users[service] = map[portal.Target]struct{}{}
		}
		b.users[service][t], b.used[t] = struct{}{}, service
	}
	return addr
}

// choice returns the i-th address derived from a name. It is neither the first nor the last of a /24, which look like a
// network and its broadcast address.
func (b *addressAllocator) choice(service string, i int) netip.Addr {
	h := fnv.New64a()
	h.Write([]byte(service + "#" + strconv.Itoa(i)))
	sum := h.Sum64()
	base := b.within.Addr().As4()
	networks := uint64(1) << (24 - b.within.Bits())
	n := uint64(binary.BigEndian.Uint32(base[:])) + sum/254%networks<<8 + 1 + sum%254
	var out [4]byte
	binary.BigEndian.PutUint32(out[:], uint32(n))
	return netip.AddrFrom4(out)
}

// forget releases t. With its last target, the Service loses its address.
func (b *addressAllocator) forget(t portal.Target) {
	service, ok := b.used[t]
	if !ok {
		return
	}
	delete(b.used, t)
	if delete(b.users[service], t); len(b.users[service]) > 0 {
		return
	}
	delete(b.owner, b.addr[service])
	delete(b.addr, service)
	delete(b.users, service)
}
