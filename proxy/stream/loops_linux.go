package stream

import (
	"fmt"
	"time"

	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/forward"
)

// loops carry TCP connections: one for each poller, from the first TCP listener
// on. A connection stays on its loop.
type loops struct {
	list []*forward.Loop // set once, by who opens listeners
	next int             // of list: the first to watch the next listener
}

// maxWatchers is how many loops watch a listener. The kernel lets no more than 500 do so, and a few
// accept as fast as it lets clients in.
const maxWatchers = 4

// watchers returns the loops that are to watch a new listener, which differ from one to the next.
func (ls *loops) watchers() (few []*forward.Loop) {
	for range min(maxWatchers, len(ls.list)) {
		few = append(few, ls.list[ls.next%len(ls.list)])
		ls.next++
	}
	return few
}

// descriptorsPerTCPLoop are epoll and eventfd.
const descriptorsPerTCPLoop = 2

// maxPipes is how many pipes a loop may have, for as many streams that keep it busy
// at the same time.
const maxPipes = 32

// start starts the loops if they do not run yet.
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
	for _, p := range pollers {
		ls.list = append(ls.list, forward.NewLoop(p, forward.Options{Keepalive: s.keepalive(), Pipes: pipes, Mark: s.node.Portal.Mark(),
			FirstPort: ports.First, LastPort: ports.Last}))
	}
	s.node.Budget.TCPLoops.Store(int64(n * (descriptorsPerTCPLoop + 2*pipes)))
	return nil
}

// giveUp gives up the attempts that are under way, and breaks the connections that have
// an endpoint.
func (ls *loops) giveUp() {
	for _, l := range ls.list {
		_ = l.Do(l.CancelDials) // or it has ended, and has none
		_ = l.Do(func() { l.EachPair(func(p *forward.PairHere, _ forward.Owner) { p.Break() }) })
	}
}

// retire retires the connections to some endpoints. It is called while the loops run.
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

// stop ends the loops, whose connections have ended.
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
