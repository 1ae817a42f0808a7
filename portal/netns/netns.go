package netns

import "net/netip"

// Address is the namespace's own address: what is sent elsewhere comes from it,
// and a nameserver for the namespace may listen on it. It is out of the block
// that RFC 7335 sets aside for hosts behind a tunnel that translates.
var Address = netip.AddrFrom4([4]byte{192, 0, 0, 6})

// address6 is Address for IPv6: a unique local one (RFC 4193).
var address6 = netip.MustParseAddr("fd75:7368:6572::6")

// MTU is that of the device that leads elsewhere. What it carries never leaves
// the machine as it is, so it may be as large as that of lo.
const MTU = 65520

// Options say how a namespace is to be.
type Options struct {
	// Self are the arguments with which this program calls Inside.
	Self []string
	// ResolvConf is what /etc/resolv.conf says inside.
	ResolvConf string
}

// Command is what runs inside.
type Command struct {
	Path string   // of the program
	Args []string // with its name
	Env  []string
}
