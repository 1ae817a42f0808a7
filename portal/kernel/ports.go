package kernel

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"

	"github.com/usherproxy/usher/portal"
)

// LocalPorts returns the ports that this node's kernel chooses from for its own connections
// (net.ipv4.ip_local_port_range), or none if it is unreadable.
func LocalPorts() (r portal.PortRange) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		_, err = fmt.Sscan(string(text), &r.First, &r.Last)
	}
	if err != nil {
		return portal.PortRange{}
	}
	return r
}

// PortsBelowLocal returns ports that hosts do not choose for their own connections: from 8192 up, below 32768 and below
// LocalPorts. If these are fewer than 8192, it returns none. LocalPorts start at 32768 on Linux unless changed, and at
// 49152 on other systems (RFC 6335).
func PortsBelowLocal() portal.PortRange {
	const first, last, few = 8192, 32767, 8192
	switch local := LocalPorts().First; {
	case local == 0 || local > last:
		return portal.PortRange{First: first, Last: last}
	case local < first+few:
		return portal.PortRange{}
	default:
		return portal.PortRange{First: first, Last: local - 1}
	}
}

// FreePorts proposes local ports for TCP listeners, from the half of LocalPorts that the kernel would choose from. The
// kernel's own choice (bind to port 0) is slow with thousands of ports in use: 0.25 ms with 10,000 listeners, 2 s for
// all of them. A proposed port may be in use. FreePorts is not safe for concurrent use.
type FreePorts struct {
	ports []uint16
	next  int
}

// NewFreePorts reads the range of the calling thread's network namespace. Without a range it proposes nothing.
func NewFreePorts() *FreePorts {
	local := LocalPorts()
	if local.First == 0 {
		return &FreePorts{}
	}
	reserved := reservedPorts()
	f := &FreePorts{}
	// The kernel prefers every second port, from the one after First, for listeners, and the others for its own
	// connections. Listeners on the latter would make it search long for a free port.
	for port := int(local.First) + 1; port <= int(local.Last); port += 2 {
		if !slices.ContainsFunc(reserved, func(r portal.PortRange) bool { return r.First <= uint16(port) && uint16(port) <= r.Last }) {
			f.ports = append(f.ports, uint16(port))
		}
	}
	if len(f.ports) > 0 {
		f.next = rand.IntN(len(f.ports))
	}
	return f
}

// Propose returns a different port with each call until all have been returned, then repeats; 0 if there is none.
func (f *FreePorts) Propose() uint16 {
	if len(f.ports) == 0 {
		return 0
	}
	f.next = (f.next + 1) % len(f.ports)
	return f.ports[f.next]
}

// reservedPorts returns the ports that an administrator has reserved.
func reservedPorts() (ranges []portal.PortRange) {
	text, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_reserved_ports") // the file may not exist
	for word := range strings.SplitSeq(strings.TrimSpace(string(text)), ",") {
		if r, ok := portal.ParsePorts(strings.ReplaceAll(word, "-", ":")); ok {
			ranges = append(ranges, r)
		}
	}
	return ranges
}
