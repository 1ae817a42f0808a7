package kernel

import (
	"fmt"
	"os"

	"github.com/usherproxy/usher/portal"
)

// LocalPorts returns the ports that this node's kernel chooses from for its own connections
// (net.ipv4.ip_local_port_range), or none if it does not tell.
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

// PortsBelowLocal returns ports that hosts do not choose for their own connections: those
// from 8192 on that are below LocalPorts, which begin with 32768 unless
// somebody has changed it here; elsewhere than on Linux that begins with 49152 (RFC 6335).
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
