package lab

import (
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/proxyproto"
)

// SpoiledHeader returns a header as a broken balancer, or another client, might send it:
// a PROXY protocol header with bytes that are changed, removed,
// inserted, duplicated or cut off. Few are still valid, and are discarded.
func SpoiledHeader(r *rand.Rand) []byte {
	for {
		b := spoil(r, header(r))
		if _, _, err := proxyproto.Read(b); err != nil {
			return b
		}
	}
}

func header(r *rand.Rand) []byte {
	bytes := make([]byte, 16)
	for i := range bytes {
		bytes[i] = byte(r.Uint32())
	}
	a, _ := netip.AddrFromSlice(bytes[:[...]int{4, 16}[r.IntN(2)]])
	from, to := netip.AddrPortFrom(a, uint16(r.Uint32())), netip.AddrPortFrom(a.Next(), uint16(r.Uint32()))
	b := proxyproto.Header(config.ProxyV1+config.ProxyProtocol(r.IntN(2)), []config.Protocol{config.TCP, config.UDP}[r.IntN(2)], from, to)
	if r.IntN(8) == 0 {
		b = slices.Insert(b, len(b), bytes...)
	}
	return b
}

func spoil(r *rand.Rand, b []byte) []byte {
	for range 1 + r.IntN(4) {
		if len(b) == 0 {
			break
		}
		at := r.IntN(len(b))
		if r.IntN(2) == 0 {
			at = min(at, r.IntN(20)) // in the signature and version
		}
		at = min(at, len(b)-1)
		switch r.IntN(6) {
		case 0:
			b[at] ^= 1 << r.IntN(8)
		case 1:
			b[at] = byte(r.Uint32())
		case 2:
			b = slices.Delete(b, at, at+1)
		case 3:
			b = slices.Insert(b, at, byte(r.Uint32()))
		case 4:
			b = slices.Insert(b, at, b[at:]...)
		default:
			b = b[:at]
		}
	}
	return b
}
