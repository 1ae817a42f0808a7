package proxy

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/proxy/balance"
)

// udpSearch is what a session needs until an endpoint has answered.
type udpSearch struct {
	attempts
	now try

	// The last datagrams, to be sent again to the next endpoint. Of many that
	// come before the first answer, the last ones matter.
	kept  [maxKept]keptDatagram
	count int // datagrams kept so far; the next one goes to kept[count%maxKept]
}

type keptDatagram struct {
	data []byte
	at   time.Time // zero if there is none
}

const (
	// maxKept is how many datagrams a session keeps.
	maxKept = 8
	// keptTime is how long a datagram is worth sending again. A refusal comes
	// within a round trip.
	keptTime = time.Second
	// maxKeptBytes bounds the copies that one loop keeps. A datagram for which
	// there is no room is sent once.
	maxKeptBytes = 16 << 20
)

func newUDPSearch(s *udpSession) *udpSearch {
	f := s.socket.front
	return &udpSearch{attempts: attempts{
		quarantine: f.quarantine(),
		affinity:   f.affinity,
		client:     s.from.Addr(),
		report:     s.event,
	}}
}

// keep keeps copies of datagrams.
func (u *udpSearch) keep(s *udpSession, at, count int) {
	loop := s.socket.loop
	now := loop.clock()
	for i := at + max(0, count-maxKept); i < at+count; i++ {
		k := &u.kept[u.count%maxKept]
		u.count++
		data := loop.in.Data(i)
		k.at = time.Time{}
		if more := len(data) - cap(k.data); more > 0 {
			if loop.kept+more > maxKeptBytes {
				continue
			}
			loop.kept -= cap(k.data)
			k.data = make([]byte, 0, len(data))
			loop.kept += cap(k.data)
		}
		k.data, k.at = append(k.data[:0], data...), now
	}
}

// failed is called when the endpoint refuses.
func (s *udpSession) failed(err error) {
	if s.search == nil {
		s.broken(err)
		return
	}
	refused := s.endpoint.State
	s.moveOn(attemptError(err), true)
	s.socket.listener.abandon(refused)
}

// moveOn goes on to the next endpoint, and sends it what was kept.
func (s *udpSession) moveOn(why error, blame bool) {
	for {
		s.search.end(s.search.now, s.socket.loop.clock(), why, blame)
		s.disconnect()
		if !s.connect() {
			s.socket.front.proxy.counters.drop(DropNoEndpoint, 1)
			return
		}
		err := s.sendAgain()
		if err == nil {
			return
		}
		why, blame = attemptError(err), true
	}
}

// Why a session goes on to another endpoint that did not refuse it.
var (
	errRefusedOther = errors.New("it refused another client")
	errLeft         = errors.New("it left before it answered")
)

// abandon makes the sessions go on to another endpoint that wait for the first
// answer of one that has refused another client. Hosts bound how often they
// send ICMP errors (Linux once a second to each address, after six at once: see
// icmp_ratelimit, icmp(7)), so most clients of a dead endpoint learn nothing.
func (l *udpSocket) abandon(refused *balance.State) {
	now := l.loop.clock()
	var waiting []*udpSession
	for e := l.order.Back(); e != nil; e = e.Prev() {
		s := e.Value.(*udpSession)
		if now.Sub(s.last) > keptTime {
			break
		}
		if s.search != nil && s.endpoint.State == refused {
			waiting = append(waiting, s)
		}
	}
	for _, s := range waiting {
		if s.fd >= 0 && s.endpoint.State == refused { // not evicted meanwhile
			s.moveOn(errRefusedOther, false)
		}
	}
}

// sendAgain sends what was kept to an endpoint that is new to the session.
func (s *udpSession) sendAgain() error {
	u := s.search
	now := s.socket.loop.clock()
	c := &s.socket.front.proxy.counters
	for i := range maxKept {
		k := &u.kept[(u.count+i)%maxKept]
		if k.at.IsZero() || now.Sub(k.at) > keptTime {
			continue
		}
		switch err := unix.Send(s.fd, k.data, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); {
		case err == nil:
			s.toEndpoint += int64(len(k.data))
			c.datagramsToEndpoint.Add(1)
		case unreachable(err):
			return err
		case bufferFull(err):
			c.drop(DropSendBuffer, 1)
		default:
			c.drop(notSent(err), 1)
		}
	}
	return nil
}

func (s *udpSession) dropSearch() {
	for i := range s.search.kept {
		s.socket.loop.kept -= cap(s.search.kept[i].data)
	}
	s.search = nil
}
