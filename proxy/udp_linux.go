package proxy

import (
	"container/list"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/trace"
)

// udpEngine runs the loops that serve UDP, about one for each processor, from
// the first UDP listener on.
//
// A listener has a socket on each of several loops. The kernel brings all
// datagrams of one client to the same socket, so a session belongs to one loop
// for all its life, and nothing that a datagram touches needs a lock.
type udpEngine struct {
	proxy *Proxy

	loops []*udpLoop // guarded by Proxy.mu
	next  int        // the loop on which the next listener begins

	retiring sync.WaitGroup // sockets that a successor has, and by which replies go out yet
}

// A listener has a socket on so many loops at the most: with a thousand
// service ports on a machine of many cores they would be too many descriptors,
// and the clients of different ports are spread all the same.
const maxSocketsPerListener = 4

// descriptorsPerLoop are epoll, eventfd and netlink.
const descriptorsPerLoop = 3

// start starts the loops if they do not run yet.
func (e *udpEngine) start() error {
	for len(e.loops) < runtime.GOMAXPROCS(0) {
		poller, err := forward.NewPoller()
		if err != nil {
			return fmt.Errorf("starting a loop for UDP: %w", err)
		}
		loop := &udpLoop{
			proxy:    e.proxy,
			poller:   poller,
			in:       forward.NewBatch(batchSize),
			out:      forward.NewBatch(batchSize),
			came:     make([]arrival, batchSize),
			clients:  map[netip.Addr]*list.List{},
			refusals: rate.NewLimiter(refusalsPerSecond, refusalsPerSecond),
		}
		if err := poller.Do(func() { poller.OnRoundEnd(loop.endRound) }); err != nil {
			return fmt.Errorf("starting a loop for UDP: %w", err)
		}
		e.loops = append(e.loops, loop)
		e.proxy.budget.udp.Add(descriptorsPerLoop)
	}
	return nil
}

// stop ends the loops. Their listeners are closed already.
func (e *udpEngine) stop() {
	for _, loop := range e.loops {
		loop.poller.Close()
		if loop.flows != nil {
			loop.flows.Close()
		}
		e.proxy.budget.udp.Add(-descriptorsPerLoop)
	}
	e.loops = nil
}

// choose returns the loops for a new listener.
func (e *udpEngine) choose() []*udpLoop {
	n := min(len(e.loops), maxSocketsPerListener)
	chosen := make([]*udpLoop, n)
	for i := range chosen {
		chosen[i] = e.loops[(e.next+i)%len(e.loops)]
	}
	e.next = (e.next + n) % len(e.loops)
	return chosen
}

// batchSize is how many datagrams one system call may bring or send.
const batchSize = 32

// udpLoop is what the sockets and sessions of one poller share. Except for what
// is set before it starts, it belongs to the poller's goroutine.
type udpLoop struct {
	proxy  *Proxy
	poller *forward.Poller
	flows  *portal.Flows // nil until a listener behind a redirect needs it

	in   *forward.Batch // from clients
	came []arrival      // of those in in

	out      *forward.Batch // replies that wait for the end of the round
	outCount int
	outFrom  *udpSocket // the socket that they go out by

	sessions list.List                 // *udpSession; idle for longest first
	clients  map[netip.Addr]*list.List // the same by the client's address; none is empty
	peak     int                       // clients at once since the map was made
	kept     int                       // bytes in copies of datagrams
	now      time.Time                 // of this round, once somebody asked
	refusals *rate.Limiter
}

// join puts s among its client's sessions.
func (l *udpLoop) join(s *udpSession) {
	client := s.from.Addr()
	s.siblings = l.clients[client]
	if s.siblings == nil {
		s.siblings = new(list.List)
		l.clients[client] = s.siblings
		l.peak = max(l.peak, len(l.clients))
	}
	s.inClient = s.siblings.PushBack(s)
}

// leave takes s from among its client's sessions.
func (l *udpLoop) leave(s *udpSession) {
	if s.siblings.Remove(s.inClient); s.siblings.Len() > 0 {
		return
	}
	delete(l.clients, s.from.Addr())
	if len(l.clients) == 0 && l.peak > keepMap {
		l.clients, l.peak = map[netip.Addr]*list.List{}, 0 // as udpSocket.forget does
	}
}

// clock returns the time, to the accuracy of a round.
func (l *udpLoop) clock() time.Time {
	if l.now.IsZero() {
		l.now = time.Now()
	}
	return l.now
}

func (l *udpLoop) endRound() {
	l.flush()
	l.now = time.Time{}
}

// flush sends the replies that wait.
func (l *udpLoop) flush() {
	if l.outCount == 0 {
		return
	}
	c := &l.proxy.counters
	sent := 0
	for at := 0; at < l.outCount; {
		n, err := l.out.Send(l.outFrom.fd, at, l.outCount-at)
		at += n
		sent += n
		switch {
		case err == nil:
		case bufferFull(err): // for the others, too
			c.drop(DropSendBuffer, l.outCount-at)
			at = l.outCount
		default:
			c.drop(notSent(err), 1)
			at++
		}
	}
	c.datagramsToClient.Add(int64(sent))
	l.outCount, l.outFrom = 0, nil
}

// bufferFull reports whether err says that a socket has no room for more.
func bufferFull(err error) bool { return err == unix.EAGAIN || err == unix.ENOBUFS }

// evictOldest ends the session that has been idle longest, unless it is spare,
// and reports whether there was one.
func evictOldest(sessions *list.List, spare *udpSession) bool {
	for e := sessions.Front(); e != nil; e = e.Next() {
		if s := e.Value.(*udpSession); s != spare {
			s.end(trace.Limit, errEvicted)
			return true
		}
	}
	return false
}

var errEvicted = errors.New("another client needed the room, and this one had been idle longest")
