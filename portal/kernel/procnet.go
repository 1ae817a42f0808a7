package kernel

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// ParseProcNet parses an address and port in the notation of the files of /proc/net (proc(5)): "0100007F:1F90", the
// address as 32-bit words in the machine's byte order. It returns an IPv4-mapped IPv6 address as IPv4.
func ParseProcNet(text string) (netip.AddrPort, error) {
	addrText, portText, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(addrText)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if len(b)%4 == 0 {
		for i := 0; i < len(b); i += 4 {
			binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
		}
	}
	addr, ok := netip.AddrFromSlice(b)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("%q is not an address", addrText)
	}
	port, err := strconv.ParseUint(portText, 16, 16)
	return netip.AddrPortFrom(addr.Unmap(), uint16(port)), err
}
