package sctp

import (
	"errors"
	"net/netip"
	"os"
)

// ErrUnsupported is why nothing works on systems for which this package has no
// sockets.
var ErrUnsupported = errors.New("SCTP requires Linux")

// ErrMessageTooLarge is why an association with a message of more than
// [MaxMessage] bytes cannot go on.
var ErrMessageTooLarge = errors.New("message larger than usher's maximum")

// MaxMessage is the size of the largest message that is carried. A message is
// held whole, since Linux cannot send one in parts (it has no SCTP_EXPLICIT_EOR,
// RFC 6458 section 8.1.26).
const MaxMessage = 1 << 20

// Streams are how many streams an association has, as one side sees it.
type Streams struct {
	In, Out uint16
}

// Addr is one end of an association.
type Addr netip.AddrPort

// Network returns "sctp".
func (a Addr) Network() string { return "sctp" }

// String returns "address:port".
func (a Addr) String() string { return a.AddrPort().String() }

// AddrPort returns a as netip has it.
func (a Addr) AddrPort() netip.AddrPort { return netip.AddrPort(a) }

// InUse reports whether the kernel's SCTP is there already, as a module that
// somebody has loaded or built in: it then handles every SCTP packet that
// reaches this machine, and opening a socket adds nothing to that. Looking does
// not load it.
func InUse() bool {
	for _, sign := range []string{"/proc/net/sctp", "/sys/module/sctp"} {
		if _, err := os.Stat(sign); err == nil {
			return true
		}
	}
	return false
}
