package load

import (
	"fmt"
	"net/netip"
	"time"
)

// Kind is the kind of load that clients make.
type Kind string

// The kinds of load.
const (
	// CRR: connect, send, read the same number of bytes, close, again.
	CRR Kind = "crr"
	// RR: send and read the same number of bytes on persistent connections.
	RR Kind = "rr"
	// Stream: send as fast as the connection accepts data, or at a constant rate.
	Stream Kind = "stream"
	// UDP: send a datagram for each that comes back.
	UDP Kind = "udp"
	// Hold: open connections, exchange Size bytes on each, and keep them.
	Hold Kind = "hold"
)

// Spec is a load. It is the argument of the process that makes it.
type Spec struct {
	Kind    Kind
	To      netip.AddrPort
	Clients int
	Size    int           // bytes of a message, a datagram or a write
	Window  int           // UDP: datagrams that each client has in flight
	Loops   int           // threads
	Rate    float64       // CRR, RR: exchanges per second that are due, Stream: bytes per second; of all clients; 0 means as many as possible
	Warm    time.Duration // before begin
	For     time.Duration // from begin to end
}

// stampSize is the number of bytes at the start of a datagram that hold its send time, in nanoseconds after the
// measurement began.
const stampSize = 8

// check returns an error that names the invalid field.
func (s Spec) check() error {
	switch {
	case !s.To.IsValid():
		return fmt.Errorf("field To: an address and port are needed")
	case s.Clients < 1 || s.Size < 1 || s.Loops < 1:
		return fmt.Errorf("fields Clients, Size and Loops: %d, %d, %d; each must be at least 1", s.Clients, s.Size, s.Loops)
	case s.Kind == UDP && s.Size < stampSize:
		return fmt.Errorf("field Size: %d; a datagram has at least %d bytes", s.Size, stampSize)
	case s.Kind == UDP && s.Window < 1:
		return fmt.Errorf("field Window: %d; must be at least 1", s.Window)
	case s.Rate < 0 || s.Rate > 0 && s.Kind != CRR && s.Kind != RR && s.Kind != Stream:
		return fmt.Errorf("field Rate: %g; 0, or of kind %q, %q or %q more", s.Rate, CRR, RR, Stream)
	case s.Kind != Hold && s.For <= 0:
		return fmt.Errorf("field For: %s is not a positive duration", s.For)
	}
	return nil
}

// Result is the clients' result between begin and end.
type Result struct {
	Seconds float64
	Done    int64 // exchanges, datagrams that came back, or bytes sent
	Errors  int64 // failed connections, whenever they failed
	Lost    int64 // datagrams that did not come back
	// Latencies of exchanges, including connecting if that is part of the exchange, from the moment it was due. A
	// percentile that fewer than ten exchanges exceed would be random: it is 0. So P99 takes 1,000 exchanges, and P999,
	// which is 99.9 percent, 10,000.
	P50, P99, P999 time.Duration
}
