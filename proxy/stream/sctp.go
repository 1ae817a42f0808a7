package stream

import "errors"

// SCTPMode selects whether SCTP Services are served.
//
// The first SCTP socket on a machine makes the kernel load its SCTP. From then on the kernel answers every SCTP packet
// that reaches the machine. It does not know the associations of SCTP implementations in user space, so it aborts them.
// KEP-614 has the details.
type SCTPMode string

// Values of SCTPMode.
const (
	SCTPAuto SCTPMode = "auto" // only where the kernel's SCTP is in use already
	SCTPOn   SCTPMode = "on"   // load it
	SCTPOff  SCTPMode = "off"  // never open an SCTP socket
)

// Reasons why SCTP is not served: it is unavailable, or switched off.
var (
	ErrNoSCTP  = errors.New("SCTP cannot be served")
	ErrSCTPOff = errors.New("SCTP is not served")
)
