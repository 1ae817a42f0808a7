package forward

import (
	"sync/atomic"
)

// Options are the settings of a Loop.
type Options struct {
	// Keepalive applies to connections to endpoints. They get it within probedAfter.
	Keepalive Keepalive
	// Pipes is the maximum number of pipes for bulk data. Each takes two descriptors. Pairs without a pipe copy bytes
	// through a buffer.
	Pipes int
	// Mark is set on the packets of connections to endpoints (SO_MARK, socket(7)). It needs CAP_NET_ADMIN; 0 means
	// none.
	Mark uint32
	// FirstPort and LastPort are the kernel's range of local ports (net.ipv4.ip_local_port_range); 0 if unknown.
	FirstPort, LastPort uint16
}

// Loop connects to endpoints and forwards TCP pairs, all in the goroutine of its [Poller]. An idle pair costs its two
// descriptors and a few hundred bytes.
type Loop struct {
	*Poller
	keepalive Keepalive
	mark      uint32
	pairs     atomic.Int64 // number of pairs
	saved     atomic.Int64 // number of saved pairs: see PairHere.Save

	// Only the loop may use these.
	buffer   []byte // for the bytes of all pairs that do not go through a pipe
	pipes    pipes
	timed    []*timedQueue
	limited  limited
	unprobed unprobed
	ports    localPorts
}

// bufferSize is the maximum number of bytes per read. Streams fill the buffer; requests and responses rarely do.
const bufferSize = 64 << 10

// NewLoop returns a Loop on poller, which must outlive it.
func NewLoop(poller *Poller, o Options) *Loop {
	l := &Loop{Poller: poller, keepalive: o.Keepalive, mark: o.Mark, buffer: make([]byte, bufferSize), pipes: pipes{max: o.Pipes},
		ports: localPorts{first: o.FirstPort, last: o.LastPort}}
	l.limited.loop = l
	return l
}

// Close stops the Loop's timers, closes its unused pipes, and returns when that is done. All its pairs must have ended.
// The Poller keeps running; its goroutine must not call Close.
func (l *Loop) Close() {
	l.Call(func() {
		l.stopTimers()
		l.pipes.close()
	})
}
