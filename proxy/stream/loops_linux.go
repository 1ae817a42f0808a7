package stream

import (
	"fmt"
	"time"

	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/forward"
)

// loops serve TCP connections, one loop for each poller. They start with the first TCP listener, or earlier to receive
// connections from another process. A connection stays on its loop.
type loops struct {
	list []*forward.Loop // set by start, nil again after stop; both hold Server.stopping
	next int             // next modulo len(list) is the index of the first loop that watches the next listener
}

// maxWatchers is the number of loops that watch a listener. Four accept as fast as the kernel completes connections.
const maxWatchers = 4

// watchers returns the loops that watch a new listener, in rotation.
func (ls *loops) watchers() (few []*forward.Loop) {
	for range min(maxWatchers, len(ls.list)) {
		few = append(few, ls.list[ls.next%len(ls.list)])
		ls.next++
	}
	return few
}

// descriptorsPerTCPLoop counts epoll and eventfd.
const descriptorsPerTCPLoop = 2

// maxPipes limits the pipes of a loop. Each stream that it splices at the same time needs one.
const maxPipes = 32

// start starts the loops unless they run already.
func (ls *loops) start(s *Server) error {
	if ls.list != nil {
		return nil
	}
	pollers, err := s.pollers.Take()
	if err != nil {
		return fmt.Errorf("starting a TCP event loop: %w", err)
	}
	n := len(pollers)
	pipes, ports := min(maxPipes, s.node.Budget.Pipes(n)), kernel.LocalPorts()
	var list []*forward.Loop
	for _, p := range pollers {
		list = append(list, forward.NewLoop(p, forward.Options{Keepalive: s.keepalive(), Pipes: pipes, Mark: s.node.Portal.Mark(),
			FirstPort: ports.First, LastPort: ports.Last}))
	}
	s.node.Budget.TCPLoops.Store(int64(n * (descriptorsPerTCPLoop + 2*pipes)))
	s.stopping.Lock()
	defer s.stopping.Unlock()
	ls.list = list // see Server.running
	return nil
}

// giveUp cancels the attempts to connect, and resets the connections that have an endpoint.
func (ls *loops) giveUp() {
	for _, l := range ls.list {
		_ = l.Do(func() { // fails only if the loop has ended; it then has no attempts
			l.CancelDials()
			l.EachPair(func(p *forward.PairHere, _ forward.Owner) { p.Break() })
		})
	}
}

// retire retires the connections to some endpoints. The loops must be running.
func (ls *loops) retire(endpoints map[*balance.State]bool, by time.Time) {
	for _, l := range ls.list {
		_ = l.Do(func() {
			l.EachPair(func(p *forward.PairHere, owner forward.Owner) {
				if c, is := owner.(*Conn); is && endpoints[c.Endpoint.State] {
					p.Retire(by)
				}
			})
		})
	}
}

// stop ends the loops. Their connections must have ended.
func (ls *loops) stop(s *Server) {
	for _, l := range ls.list {
		l.Close()
	}
	if ls.list != nil {
		s.pollers.Release()
		ls.list = nil
	}
}

func (s *Server) keepalive() forward.Keepalive {
	return forward.Keepalive{Idle: s.Keepalive, Interval: keepaliveInterval, Probes: keepaliveProbes}
}
