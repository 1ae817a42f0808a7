//go:build !386

package sctp

import (
	"os"
	"syscall"
)

// errTooLarge is returned for a message of more than [MaxMessage] bytes; the association cannot continue.
var errTooLarge error = limitError("message larger than usher's maximum")

var errTooManyLarge error = limitError("too many large messages in progress")

// limitError is a limit of this package. It is EMSGSIZE, too.
type limitError string

func (e limitError) Error() string { return string(e) }

func (limitError) Is(target error) bool { return target == syscall.EMSGSIZE }

// MaxMessage is the size of the largest supported message, in bytes. A message is held whole, since Linux cannot send
// one in parts (it has no SCTP_EXPLICIT_EOR, RFC 6458 section 8.1.26).
const MaxMessage = 1 << 20

// Streams holds the number of streams of an association, as one side sees it.
type Streams struct {
	In, Out uint16
}

// InUse reports whether the kernel's SCTP is already loaded, as a module or built in. It then handles every SCTP packet
// that reaches this machine, and opening a socket adds nothing to that. InUse does not load it.
func InUse() bool {
	for _, sign := range []string{"/proc/net/sctp", "/sys/module/sctp"} {
		if _, err := os.Stat(sign); err == nil {
			return true
		}
	}
	return false
}
