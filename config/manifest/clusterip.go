package manifest

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
)

// allocate returns the cluster IP of network for the Service of that name. It
// depends on nothing but the name, unless that address is taken: then it is the
// next that is free. It returns false if none is.
//
// The lowest addresses are given out last: as in Kubernetes, they are for
// Services that name their cluster IP themselves, so that both seldom meet.
// Network and broadcast address are not given out.
func allocate(network netip.Prefix, name string, taken func(netip.Addr) bool) (netip.Addr, bool) {
	first, last := usableOffsets(network)
	start := first + staticBand(last-first+1)
	h := fnv.New64a()
	h.Write([]byte(name))
	at := start + mix(h.Sum64())%(last-start+1)
	for range last - first + 1 {
		if a := offset(network, at); !taken(a) {
			return a, true
		}
		if at++; at > last {
			at = first
		}
	}
	return netip.Addr{}, false
}

// usableOffsets returns the first and the last address that may be given out,
// counted from the beginning of network. Of a large network only the lower
// 2^32 addresses are used.
func usableOffsets(network netip.Prefix) (first, last uint64) {
	size := uint64(1) << min(network.Addr().BitLen()-network.Bits(), 32)
	if network.Addr().Is4() {
		return 1, size - 2 // without the broadcast address
	}
	return 1, size - 1
}

// staticBand returns how many of size addresses are for Services that name their
// cluster IP: a sixteenth, but between 16 and 256 (KEP-3070).
func staticBand(size uint64) uint64 {
	if size <= 16 {
		return 0
	}
	return min(max(16, size/16), 256)
}

// mix spreads the bits of a hash over all of them: FNV alone leaves similar
// names close together.
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	return h
}

// offset returns the address that is n after the beginning of network.
func offset(network netip.Prefix, n uint64) netip.Addr {
	if a := network.Addr(); a.Is4() {
		b := a.As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
		return netip.AddrFrom4(b)
	}
	b := network.Addr().As16()
	binary.BigEndian.PutUint64(b[8:], binary.BigEndian.Uint64(b[8:])+n)
	return netip.AddrFrom16(b)
}
