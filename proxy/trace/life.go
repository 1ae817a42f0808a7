package trace

import (
	"math"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
	"unique"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/outcome"
)

// Life is one connection, or UDP session, from accept to close: who it is, and
// the attempts that were made for it. One goroutine at a time reports its steps;
// any may read. Where connections are many and idle this is most of what each takes, so
// what is the same for many is said once, and what few have is elsewhere.
type Life struct {
	// Set before Log.Begin, and not changed after it.
	ID       uint64 // unique in the process
	Service  *Service
	From, To netip.AddrPort
	Via      *netip.AddrPort // see Subject
	Began    time.Time

	// Most connections have one attempt, which is answered: that is here, so that they
	// need no more memory. Where it was otherwise, tried has all attempts.
	first answered
	tried atomic.Pointer[[]Tried] // replaced, never changed

	firstByte atomic.Int64 // see FirstByte; nanoseconds. Until then, less than 0: the time that does not count

	// Guarded by its part's lock.
	moving        Mover   // nil before it is established, and after the end
	before, after *Life   // where it stands among those that have not ended
	ending        *ending // nil while it has not ended; not changed from then on
}

// Service is what all clients of a service port have in common. It never changes.
type Service struct {
	Port     config.PortID
	Protocol config.Protocol
	Unlogged bool // they are left out of the access log
}

// Tried is an attempt that has ended.
type Tried struct {
	Endpoint   netip.AddrPort
	Pod        string
	Reason     string // why this endpoint
	PassedOver int
	Began      time.Duration // after the connection was accepted
	Took       time.Duration
	Result     Result
	Seen       portal.Seen   // by the endpoint
	Queued     time.Duration // for how long the client had been in line by then
	Err        string        // "" if it succeeded
}

// answered is a first attempt that succeeded.
type answered struct {
	choice      unique.Handle[choice]
	began, took time.Duration
	passedOver  uint16
	seen        portal.Seen
	is          atomic.Bool // there was one; set last
}

// choice is what many connections have in common: to whom they were connected, and why.
type choice struct {
	endpoint    netip.AddrPort
	pod, reason string
}

// ending is how a connection ended.
type ending struct {
	outcome.Result
	took  time.Duration
	to    uint8 // the attempt at whose endpoint it was, from 1 on; 0 if at none
	flags Flags
}

// Mover tells how many bytes were moved so far.
type Mover interface {
	Bytes() (toEndpoint, toClient int64)
}

// Subject returns who it is.
func (l *Life) Subject() Subject {
	s := Subject{Conn: l.ID, Client: l.From, Via: l.Via, VIP: l.To}
	if l.Service != nil {
		s.Port, s.Protocol = l.Service.Port, l.Service.Protocol
	}
	return s
}

// Asked says that the client, which had an endpoint already and had sent nothing so far, sent its first
// byte at now. Who forwards calls it, once, and not at the same time as Answered.
func (l *Life) Asked(now time.Time) {
	if t, ok := l.Established(); ok && l.firstByte.Load() == 0 {
		l.firstByte.Store(int64(min(0, t.Began+t.Took-now.Sub(l.Began))))
	}
}

// Answered says that the endpoint's first byte for the client came at now. Who forwards calls it, once.
func (l *Life) Answered(now time.Time) {
	l.firstByte.Store(int64(max(adopted+1, now.Sub(l.Began)+time.Duration(l.firstByte.Load()))))
}

// Adopted says that a predecessor of this process has brought client and endpoint together: how long
// the client waited is not known.
func (l *Life) Adopted() { l.firstByte.Store(adopted) }

// adopted stands for a time to the first byte that is not known.
const adopted = 1

// FirstByte returns how long the client waited for the endpoint's first byte, since it was accepted, but
// for the time in which it was connected and had not sent anything itself; 0 if none has come, or that
// is not known.
func (l *Life) FirstByte() time.Duration {
	if first := l.firstByte.Load(); first > adopted {
		return time.Duration(first)
	}
	return 0
}

// Tried returns the attempts, the first one first. They are not to be changed.
func (l *Life) Tried() []Tried {
	if all := l.tried.Load(); all != nil {
		return *all
	}
	if l.first.is.Load() {
		return []Tried{l.first.tried()}
	}
	return nil
}

// Attempts returns how many there are.
func (l *Life) Attempts() int {
	switch all := l.tried.Load(); {
	case all != nil:
		return len(*all)
	case l.first.is.Load():
		return 1
	}
	return 0
}

// attempt returns the one with that number, from 1 to Attempts.
func (l *Life) attempt(n int) Tried {
	if all := l.tried.Load(); all != nil {
		return (*all)[n-1]
	}
	return l.first.tried()
}

// Established returns the attempt that succeeded.
func (l *Life) Established() (Tried, bool) {
	last, ok := l.last()
	return last, ok && last.Err == ""
}

// last returns the last attempt.
func (l *Life) last() (Tried, bool) {
	n := l.Attempts()
	if n == 0 {
		return Tried{}, false
	}
	return l.attempt(n), true
}

// attemptAt returns the number, from 1 on, of the last attempt at an endpoint; 0 if there is none.
func (l *Life) attemptAt(endpoint netip.AddrPort) uint8 {
	n := min(l.Attempts(), math.MaxUint8)
	for n > 0 && l.attempt(n).Endpoint != endpoint {
		n--
	}
	return uint8(n)
}

// attempted adds an attempt.
func (l *Life) attempted(e *Event) {
	tried := Tried{Endpoint: e.Endpoint, Pod: e.Pod, Reason: e.Reason, PassedOver: e.PassedOver,
		Began: e.Time.Sub(l.Began) - e.Took, Took: e.Took, Result: e.Result, Seen: e.Seen, Queued: e.Queued, Err: e.Err}
	if tried.Err == "" && l.Attempts() == 0 && tried.Queued == 0 && tried.PassedOver <= math.MaxUint16 {
		l.first.set(&tried)
		return
	}
	all := append(slices.Clip(l.Tried()), tried)
	l.tried.Store(&all)
}

func (a *answered) set(t *Tried) {
	a.choice = unique.Make(choice{t.Endpoint, t.Pod, t.Reason})
	a.began, a.took, a.passedOver, a.seen = t.Began, t.Took, uint16(t.PassedOver), t.Seen
	a.is.Store(true)
}

func (a *answered) tried() Tried {
	c := a.choice.Value()
	return Tried{Endpoint: c.endpoint, Pod: c.pod, Reason: c.reason, PassedOver: int(a.passedOver), Began: a.began, Took: a.took, Seen: a.seen}
}
