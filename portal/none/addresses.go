package none

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"strconv"

	"github.com/usherproxy/usher/portal"
)

// ownAddresses is the range of the Services' dedicated loopback addresses: far from 127.0.0.x, where programs listen
// (127.0.0.53 is systemd-resolved's). It has four million addresses. With a thousand Services, the probability that
// at least two of them hash to the same address is 11%.
var ownAddresses = netip.MustParsePrefix("127.64.0.0/10")

// addressAllocator assigns each Service a dedicated address: a hash of its name and the smallest number for which no
// other Service has that address. Only after such a collision does the address depend on which Service came first.
type addressAllocator struct {
	within netip.Prefix // of IPv4
	owner  map[netip.Addr]string
	addr   map[string]netip.Addr
	users  map[string]map[portal.Target]struct{} // by Service, the targets that still use its address
	used   map[portal.Target]string              // the reverse of users
}

func newAddressAllocator(within netip.Prefix) *addressAllocator {
	return &addressAllocator{within: within, owner: map[netip.Addr]string{}, addr: map[string]netip.Addr{},
		users: map[string]map[portal.Target]struct{}{}, used: map[portal.Target]string{}}
}

// propose returns the Service's address, which it assigns if necessary, and records that the targets use it.
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
