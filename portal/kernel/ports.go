package kernel

import (
	"fmt"
	"os"

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

// PortsBelowLocal returns ports that hosts do not choose for their own connections: those from 8192 that are below
// 32768 and below LocalPorts. These start at 32768 on Linux unless changed, and at 49152 on other systems (RFC 6335).
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
