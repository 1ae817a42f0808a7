package netns

import "net/netip"

// Address is the namespace's own address: the source of packets to other destinations. A nameserver for the namespace
// may listen on it. It is from the block that RFC 7335 reserves for hosts behind a tunnel that translates.
var Address = netip.AddrFrom4([4]byte{192, 0, 0, 6})

// address6 is Address for IPv6: a unique local one (RFC 4193).
var address6 = netip.MustParseAddr("fd75:7368:6572::6")

// MTU is the MTU of the device for other destinations. Its packets never leave the machine as they are, so it may be
// almost as large as an IPv4 packet can be.
const MTU = 65520

// Options configure a namespace.
type Options struct {
	// Self are the arguments with which this program calls Inside.
	Self []string
	// ResolvConf is the content of /etc/resolv.conf inside.
	ResolvConf string
}

// Command is the command to run inside.
type Command struct {
	Path string   // of the program
	Args []string // with its name
	Env  []string
}
