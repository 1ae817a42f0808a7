package forward

import (
	"sync"
	"sync/atomic"
)

// Options are the settings of a Loop.
type Options struct {
	// Keepalive applies to connections to endpoints. They get it within seconds.
	Keepalive Keepalive
	// Pipes is the maximum number of pipes for bulk data, each of which takes two descriptors. Pairs without a pipe
	// copy.
	Pipes int
	// Mark is set on the packets of connections to endpoints (SO_MARK, socket(7)). It needs CAP_NET_ADMIN; 0 means
	// none.
	Mark uint32
	// FirstPort and LastPort are the kernel's range of local ports (net.ipv4.ip_local_port_range); 0 if unknown.
	FirstPort, LastPort uint16
}

// Loop connects and forwards TCP pairs, all in the goroutine of its [Poller]. An idle pair costs its two descriptors
// and a few hundred bytes.
type Loop struct {
	*Poller
	keepalive Keepalive
	mark      uint32
	pairs     atomic.Int64
	saved     atomic.Int64 // pairs that are saved: see PairHere.Save

	// Only the loop may use these.
	buffer   []byte // for all bytes of pairs that do not go through a pipe
	pipes    pipes
	timed    []*timedQueue
	limited  limited
	unprobed unprobed
	ports    localPorts
}

// bufferSize is the maximum number of bytes per read. A stream fills it; messages rarely do.
const bufferSize = 64 << 10

// NewLoop returns a Loop on poller, which must outlive it.
func NewLoop(poller *Poller, o Options) *Loop {
	l := &Loop{Poller: poller, keepalive: o.Keepalive, mark: o.Mark, buffer: make([]byte, bufferSize), pipes: pipes{max: o.Pipes},
		ports: localPorts{first: o.FirstPort, last: o.LastPort}}
	l.limited.loop = l
	return l
}

// Close ends the loop, whose pairs must have ended, and returns when it has ended. Its poller keeps running. The loop
// itself must not call Close.
func (l *Loop) Close() {
	var closed sync.WaitGroup
	l.Go(&closed, func() {
		l.stopTimers()
		l.pipes.close()
	})
	closed.Wait()
}
