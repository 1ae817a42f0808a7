package localhost

import (
	"bufio"
	"io"
	"net/netip"
	"strings"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
)

// States of sockets in /proc/net (include/net/tcp_states.h): of a TCP listener, and of a UDP socket that is not
// connected.
const (
	stateListen = "0A"
	stateClose  = "07"
)

// servers returns the servers reachable on a loopback address, according to a file of /proc/net (proc(5)):
// tcp, tcp6, udp or udp6. A socket that listens on all addresses is reachable on loopback, too. But such a
// UDP socket with an ephemeral port belongs to a client.
func servers(file string, r io.Reader, ephemeral portal.PortRange) (all []server) {
	protocol, state := config.TCP, stateListen
	if strings.HasPrefix(file, "udp") {
		protocol, state = config.UDP, stateClose
	}
	lines := bufio.NewScanner(r)
	lines.Scan() // headings
	for lines.Scan() {
		fields := strings.Fields(lines.Text()) // number, local address, remote address, state
		if len(fields) < 4 {
			continue
		}
		if fields[3] != state {
			if protocol == config.TCP {
				break // listeners come first; there may be many connections
			}
			continue
		}
		at, err := kernel.ParseProcNet(fields[1])
		if err != nil || at.Port() == 0 {
			continue
		}
		any := at.Addr().IsUnspecified()
		if any && protocol == config.UDP && ephemeral.First <= at.Port() && at.Port() <= ephemeral.Last {
			continue
		}
		for _, addr := range loopback(at.Addr()) {
			all = append(all, server{protocol, netip.AddrPortFrom(addr, at.Port())})
		}
	}
	return all
}

// loopback returns the loopback addresses at which a socket bound to addr is reachable. A socket on all IPv6
// addresses also accepts IPv4, unless it is IPv6-only, which the file does not show.
func loopback(addr netip.Addr) []netip.Addr {
	v4 := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	switch {
	case addr == netip.IPv6Unspecified():
		return []netip.Addr{netip.IPv6Loopback(), v4}
	case addr.IsUnspecified():
		return []netip.Addr{v4}
	case addr.IsLoopback():
		return []netip.Addr{addr}
	}
	return nil
}
