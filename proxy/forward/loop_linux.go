package forward

import (
	"sync"
	"sync/atomic"
)

// Options are what a Loop is made with.
type Options struct {
	// Keepalive is for the connections that the loop makes. They get it within
	// seconds.
	Keepalive Keepalive
	// Pipes bounds the pipes that bulk data is moved through, each of which takes
	// two descriptors. Pairs for which there is none copy.
	Pipes int
	// Mark is put on what the connections that the loop makes send (SO_MARK,
	// socket(7)), which takes CAP_NET_ADMIN; 0 is none.
	Mark uint32
	// FirstPort and LastPort are those that the kernel chooses from for connections
	// (net.ipv4.ip_local_port_range); 0 if that is not known.
	FirstPort, LastPort uint16
}

// Loop connects and forwards TCP pairs, all from the goroutine of its [Poller]. A
// pair that is idle costs its two descriptors and a few hundred bytes.
type Loop struct {
	*Poller
	keepalive Keepalive
	mark      uint32
	pairs     atomic.Int64
	saved     atomic.Int64 // pairs that are saved: see PairHere.Save

	// For the loop only.
	buffer   []byte // what a pair moves goes through here, or through a pipe
	pipes    pipes
	timed    []*timedQueue
	limited  limited
	unprobed unprobed
	ports    localPorts
}

// bufferSize is what one read can bring. A stream fills it; messages rarely do.
const bufferSize = 64 << 10

// NewLoop returns a Loop on poller, which runs for longer.
func NewLoop(poller *Poller, o Options) *Loop {
	l := &Loop{Poller: poller, keepalive: o.Keepalive, mark: o.Mark, buffer: make([]byte, bufferSize), pipes: pipes{max: o.Pipes},
		ports: localPorts{first: o.FirstPort, last: o.LastPort}}
	l.limited.loop = l
	return l
}

// Close ends the loop, whose pairs must have ended, and returns when it has ended. Its poller goes
// on. The loop itself must not call it.
func (l *Loop) Close() {
	var closed sync.WaitGroup
	l.Go(&closed, func() {
		l.stopTimers()
		l.pipes.close()
	})
	closed.Wait()
}
