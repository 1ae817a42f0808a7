package datagram

import (
	"container/list"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/proxy/budget"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/outcome"
)

// Server serves the UDP service ports of a node. Its loops, about one per CPU, start with the first listener.
type Server struct {
	node    *frontend.Node
	pollers *forward.Pollers
	loops   []*loop // used only by the goroutine that opens and closes listeners

	clients budget.Clients

	listeners      map[*listener]bool         // true for those that do not receive before InheritRest
	sessionRecords map[string][]sessionRecord // by the name of the listener's socket in the handover
	handover       uint32                     // number of handovers of sessions so far

	retiring sync.WaitGroup // listeners that a successor has, but that still send replies
}

// New returns a Server without listeners, whose loops use pollers.
func New(node *frontend.Node, pollers *forward.Pollers) *Server {
	return &Server{node: node, pollers: pollers, listeners: map[*listener]bool{}}
}

// descriptorsPerLoop is the maximum number of descriptors of a loop: epoll and eventfd, possibly shared with TCP, and a
// netlink socket if a listener is behind a redirect.
const descriptorsPerLoop = 3

// start starts the loops unless they run already.
func (srv *Server) start() error {
	if srv.loops != nil {
		return nil
	}
	pollers, err := srv.pollers.Take()
	if err != nil {
		return fmt.Errorf("starting a UDP event loop: %w", err)
	}
	for _, poller := range pollers {
		lp := &loop{
			server:   srv,
			counters: &srv.node.Counters,
			poller:   poller,
			in:       forward.NewBatch(batchSize),
			out:      forward.NewBatch(batchSize),
			arrivals: make([]arrival, batchSize),
			clients:  map[netip.Addr]*list.List{},
			refusals: rate.NewLimiter(frontend.RefusalsPerSecond, frontend.RefusalsPerSecond),
		}
		_ = poller.Do(func() { poller.OnRoundEnd(lp.endRound) }) // the poller runs until it is released
		srv.loops = append(srv.loops, lp)
		srv.node.Budget.UDP.Add(descriptorsPerLoop)
	}
	for _, lp := range srv.loops {
		lp.others = slices.DeleteFunc(slices.Clone(srv.loops), func(other *loop) bool { return other == lp })
	}
	return nil
}

// Stop releases the pollers, which end when no other server uses them. The listeners must be closed.
func (srv *Server) Stop() {
	var stopped sync.WaitGroup
	for _, lp := range srv.loops {
		lp.poller.Go(&stopped, func() {
			if lp.flows != nil {
				lp.flows.Close()
			}
		})
		srv.node.Budget.UDP.Add(-descriptorsPerLoop)
	}
	stopped.Wait()
	if srv.loops != nil {
		srv.pollers.Release()
	}
	srv.loops = nil
}

// batchSize is the maximum number of datagrams that one system call receives or sends.
const batchSize = 32

// loop is the shared state of the sockets and sessions of one poller. It belongs to the poller's goroutine, except for
// listeners, and for fields that are set before that goroutine first uses them.
type loop struct {
	server    *Server
	counters  *frontend.Counters
	poller    *forward.Poller
	flows     *kernel.Flows // nil until a listener behind a redirect needs it
	listeners int           // used only by the goroutine that opens and closes them
	others    []*loop       // which can forward replies of busy sessions
	lent      int           // number of lend calls

	in       *forward.Batch // from clients
	arrivals []arrival      // metadata of the datagrams in in

	out      *forward.Batch // replies that are sent at the end of the round
	outCount int
	outFrom  *socket // the socket that sends them

	sessions list.List                 // *session; longest idle first
	ported   list.List                 // those that occupy a port of this node: see session.takePort
	clients  map[netip.Addr]*list.List // the sessions by client address; no list is empty
	peak     int                       // maximum number of clients since the map was made
	kept     int                       // bytes in copies of datagrams
	now      time.Time                 // of this round; zero until clock is called
	round    uint32
	refusals *rate.Limiter
}

// join adds s to its client's sessions.
func (lp *loop) join(s *session) {
	client := s.From.Addr()
	s.siblings = lp.clients[client]
	if s.siblings == nil {
		s.siblings = new(list.List)
		lp.clients[client] = s.siblings
		lp.peak = max(lp.peak, len(lp.clients))
	}
	s.inClient = s.siblings.PushBack(s)
}

// leave removes s from its client's sessions.
func (lp *loop) leave(s *session) {
	lp.server.clients.Add(s.From.Addr(), -1)
	if s.siblings.Remove(s.inClient); s.siblings.Len() > 0 {
		return
	}
	delete(lp.clients, s.From.Addr())
	if len(lp.clients) == 0 && lp.peak > keepMap {
		lp.clients, lp.peak = map[netip.Addr]*list.List{}, 0 // as in socket.forget
	}
}

// clock returns the time, with the accuracy of a round.
func (lp *loop) clock() time.Time {
	if lp.now.IsZero() {
		lp.now = time.Now()
	}
	return lp.now
}

func (lp *loop) endRound() {
	lp.flush()
	lp.now = time.Time{}
	// A crowded poller may not have reported all descriptors that are ready, so expect must not count this round.
	if !lp.poller.Crowded() {
		lp.round++
	}
}

// burstSize has the result of the last read from a descriptor. It determines whether the next read requests one
// datagram, which is cheaper, or many.
type burstSize struct {
	round uint32 // of the last read
	many  bool   // it returned more than one datagram
}

// expect returns the number of datagrams to request, at most room. It returns 1 if the last read returned at most one,
// and the descriptor was not ready in the round that followed. That read had emptied the socket, so the next datagram
// probably arrives alone, too.
func (c *burstSize) expect(lp *loop, room int) int {
	if c.many || lp.round-c.round <= 1 {
		return room
	}
	return 1
}

// record stores the number of datagrams that a read returned.
func (c *burstSize) record(lp *loop, n int) { c.round, c.many = lp.round, n > 1 }

// flush sends the waiting replies.
func (lp *loop) flush() {
	if lp.outCount == 0 {
		return
	}
	c := lp.counters
	sent := 0
	for at := 0; at < lp.outCount; {
		n, err := lp.out.Send(lp.outFrom.fd, at, lp.outCount-at)
		at += n
		sent += n
		switch {
		case err == nil:
		case bufferFull(err): // the buffer is full for the others, too
			c.Drop(frontend.DropSendBuffer, lp.outCount-at)
			at = lp.outCount
		default:
			c.Drop(notSent(err), 1)
			at++
		}
	}
	c.DatagramsToClient.Add(int64(sent))
	lp.outCount, lp.outFrom = 0, nil
}

// bufferFull reports whether the send buffer of the socket (EAGAIN) or of the network interface (ENOBUFS) is full.
func bufferFull(err error) bool { return err == unix.EAGAIN || err == unix.ENOBUFS }

// evictOldest ends the longest idle session other than spare, and reports whether there was one.
func evictOldest(sessions *list.List, spare *session) bool {
	for e := sessions.Front(); e != nil; {
		s, next := e.Value.(*session), e.Next()
		switch {
		case s == spare:
		case !s.catchUp():
			s.end(outcome.Result{Outcome: outcome.Limit, Err: errEvicted})
			return true
		case next == nil: // s is the only one other than spare, and catchUp has updated it: look at it again
			next = e
		}
		e = next
	}
	return false
}

var errEvicted = errors.New("evicted for a newer session: this one had been idle longest")
