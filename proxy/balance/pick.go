package balance

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// Reason is why an endpoint was chosen.
type Reason uint8

// The reasons. Those of schedulers are first.
const (
	ByTurn Reason = iota + 1
	ByWeight
	ByChance
	ByTwo
	ByLeast
	ByDelay
	ByNoQueue
	ByClient
	ByMaglev
	ByVIP

	Affinity     // the client had this endpoint before
	FirstInQueue // a client without affinity had to wait in the queue; this endpoint was the first to have a free slot
	Probe        // the endpoint failed before; this connection tests whether it still does
	OnlyOne      // no other endpoint is left to try
	LastResort   // all that are left are in quarantine
	Inherited    // the previous process chose it

	// mustWait is the Reason of a Choice without an endpoint: the client must wait for a free slot. The endpoints that
	// it may use are full, or other clients are ahead. Another field would make a Choice too large for registers.
	mustWait

	Reasons = iota // the length of an array with an element for each Reason, except mustWait
)

// reasons are the names that the API, metrics and the trace use.
var reasons = [...]string{
	ByTurn: "round robin", ByWeight: "weighted round robin", ByChance: "random", ByTwo: "less loaded of two", ByLeast: "fewest connections",
	ByDelay: "shortest expected delay", ByNoQueue: "never queue", ByClient: "hash of the client's address", ByMaglev: "maglev hash of the client's address",
	ByVIP: "hash of the VIP", Affinity: "affinity", FirstInQueue: "first in queue", Probe: "probe after quarantine", OnlyOne: "only one left",
	LastResort: "all that are left are in quarantine", Inherited: "chosen by the previous process", mustWait: "no free slot",
}

// String returns the name of r.
func (r Reason) String() string { return reasons[r] }

// Request holds the inputs of a choice other than the endpoints.
type Request struct {
	Now         time.Time
	Client, VIP netip.Addr       // source and destination, for schedulers that hash them
	Tried       []netip.AddrPort // not to be tried again
	Retry       bool             // the client has tried an endpoint before

	skipFull bool // even if the Set is not limited: see Take
}

// Choice is an endpoint to try, with the reason.
type Choice struct {
	Endpoint *Endpoint
	Reason   Reason
	// Skipped is how often an endpoint in quarantine would have been next; the same one twice in a row counts once. If
	// the chosen endpoint is in quarantine, it is counted, too. The schedulers in least.go count only if all endpoints
	// are in quarantine.
	Skipped int
}

// Full reports whether a Choice has no endpoint because the client must wait for a free slot.
func (c Choice) Full() bool { return c.Reason == mustWait }

// Set is a list of endpoints to spread connections over. Its endpoints never change, only its position in the rotation
// does. It is safe for concurrent use.
type Set struct {
	pool      *Pool
	endpoints []*Endpoint
	order     order                // nil for rotation through endpoints
	cursor    atomic.Uint32        // the next turn
	slow      *slowStart           // nil without new endpoints
	sorted    bool                 // by address, as lists from the sources of Services are
	limited   bool                 // skip full endpoints, for which clients wait
	reason    Reason               // of choices by order
	group     int                  // index in Pool.queues; the same for all Sets that have the same endpoints
	timeout   time.Duration        // see QueueTimeout
	lastScan  atomic.Pointer[scan] // nil before the first
}

// Len returns the number of endpoints.
func (s *Set) Len() int { return len(s.endpoints) }

// Endpoints returns the endpoints. The caller must not change the slice.
func (s *Set) Endpoints() []*Endpoint { return s.endpoints }

// Find returns the endpoint with address addr, or nil.
func (s *Set) Find(addr netip.AddrPort) *Endpoint {
	list := s.endpoints
	if s.sorted { // there may be many, and each new connection of a client with affinity calls Find
		i, _ := slices.BinarySearchFunc(list, addr, func(e *Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
		list = list[i:min(i+1, len(list))]
	}
	for _, e := range list {
		if e.Addr == addr {
			return e
		}
	}
	return nil
}

// Pick returns the endpoint to try next. It considers only endpoints that are not in a.Tried and, in a limited Set, not
// full. Of these it returns the first in the scheduler's order that is not in quarantine. If all are in quarantine, it
// returns the scheduler's first choice, or the next in rotation. It returns false if no endpoint is left. It also
// returns false if all untried endpoints outside quarantine are full: the client waits for one of these, rather than
// use one in quarantine. The caller counts the connection with Endpoint.Take.
func (s *Set) Pick(a Request) (Choice, bool) {
	choice, skipped, ok := s.pick(look{Request: a, turn: s.cursor.Add(1) - 1, claim: true})
	// A skipped endpoint uses up its turn; otherwise the next endpoint would always get that turn in addition to its
	// own.
	if skipped > 0 {
		s.cursor.Add(skipped)
	}
	return choice, ok
}

// Take calls Again if previous, the address of the client's previous endpoint, is valid. Otherwise, or if Again returns
// false, it calls Pick. If the previous endpoint is full, the client waits for it. Take also takes a slot of the chosen
// endpoint; call Release to return it. If no slot is free, or other clients are ahead, the Choice is Full. Then Take
// adds w to the queue, unless w is nil or QueueLimit is reached.
//
// A Set that is older than the Pool.Update that introduced a limit does not skip full endpoints. If it chooses a full
// one, Take chooses again with skipFull set.
func (s *Set) Take(a Request, previous netip.AddrPort, w *Waiter) (Choice, bool) {
	for {
		var c Choice
		var kept bool
		if previous.IsValid() {
			c, kept = s.Again(previous, a)
		}
		var q *queue
		if s.pool.waiting.Load() > 0 {
			q = s.queue(a, previous, kept)
		}
		switch {
		case q != nil && q.clients.Load() > 0 && !(w != nil && w.in == q && w.Front()):
			c = Choice{Reason: mustWait}
		case !kept:
			c, _ = s.Pick(a)
		}
		switch {
		case c.Reason == mustWait:
			if w == nil || !w.join(s.queue(a, previous, kept)) {
				return c, false
			}
			// Look again: a slot may have been released before w was in the queue.
		case c.Endpoint == nil || c.Endpoint.tryTake():
			if w != nil {
				w.Leave()
			}
			return c, c.Endpoint != nil
		default:
			a.skipFull = true
		}
	}
}

// Peek predicts the result of a later call of Pick. It uses up no turn, and claims no HalfOpen endpoint. Turn 0
// predicts the next call of Pick. To predict the call after that, pass the returned next as turn, and so on.
func (s *Set) Peek(turn uint32, a Request) (c Choice, next uint32, ok bool) {
	c, skipped, ok := s.pick(look{Request: a, turn: s.cursor.Load() + turn})
	return c, turn + 1 + skipped, ok
}

// Again chooses the endpoint that the client had before; previous is its address. If the Choice is Full, the client
// should wait for that endpoint. Again returns false if the endpoint was removed, was tried, or is in quarantine. A
// quarantine that one client's failures alone caused does not count (see Report). If Again returns false, the caller
// uses any other endpoint.
func (s *Set) Again(previous netip.AddrPort, a Request) (Choice, bool) {
	e := s.Find(previous)
	switch {
	case e == nil || slices.Contains(a.Tried, previous) || !e.health.Load().keepsAffinity(a.Now):
		return Choice{}, false
	case e.Full():
		return Choice{Reason: mustWait}, true
	}
	return Choice{Endpoint: e, Reason: Affinity}, true
}

// look holds the inputs of one choice.
type look struct {
	Request
	turn  uint32 // grows by one with each choice, and with each endpoint that was skipped
	claim bool   // claims a HalfOpen endpoint; false for Peek

	ignoreSlowStart bool // set for a second pass if slow start left no endpoint to choose
}

// maxLooks is the number of endpoints that a scheduler proposes before all are checked in order. If half of a Set's
// endpoints are in quarantine, this many random proposals all fail once in 65,536 choices.
const maxLooks = 16

// pick is Pick, and also returns how many endpoints were skipped before the result.
func (s *Set) pick(l look) (Choice, uint32, bool) {
	n := uint32(len(s.endpoints))
	if n == 0 {
		return Choice{}, 0, false
	}
	var f pickResult
	looks := uint32(0)
	for ; s.order != nil && looks < maxLooks; looks++ {
		e := s.order.look(s, l, looks)
		if e == nil {
			break
		}
		if f.take(s, e, &l, looks) {
			return s.reasoned(f.Choice, l.Tried), looks, true
		}
	}
	f.Skipped, f.last = 0, nil // the loop below looks at all endpoints again
	first := l.turn % n
	for i := range n {
		if i == maxLooks {
			if c, skipped, ok := s.afterScan(l, f.fallback); ok {
				return c, skipped, true
			}
		}
		if f.take(s, s.endpoints[(first+i)%n], &l, looks+i) { // first and i are less than n: no overflow
			c := s.reasoned(f.Choice, l.Tried)
			if i >= maxScanned && l.claim {
				s.lastScan.Store(&scan{c, (first + i) % n, l.Now})
			}
			return c, looks + i, true
		}
	}
	if f.filtered {
		l.ignoreSlowStart = true
		c, skipped, ok := s.pick(l)
		if ok && n > maxScanned && l.claim && c.Endpoint.available(l.Now, false) != Down {
			s.lastScan.Store(&scan{c, (first + skipped) % n, l.Now})
		}
		return c, skipped, ok
	}
	if f.healthyFull || f.fallback == nil {
		if f.full {
			return Choice{Reason: mustWait}, 0, false
		}
		return Choice{}, 0, false
	}
	reason := LastResort
	if f.Skipped == 1 {
		reason = OnlyOne
	}
	if n > maxScanned && l.claim && !slices.ContainsFunc(l.Tried, func(a netip.AddrPort) bool {
		e := s.Find(a)
		return e != nil && e.available(l.Now, false) != Down
	}) {
		s.lastScan.Store(&scan{at: l.Now})
	}
	return Choice{Endpoint: f.fallback, Reason: reason}, f.skipped, true
}

// scan is the result of a choice that looked at more than maxScanned endpoints.
type scan struct {
	Choice        // without an Endpoint if all are in quarantine
	index  uint32 // of the Endpoint in the Set
	at     time.Time
}

// After a scan, choices use its result for restPerEndpoint, multiplied by the number of endpoints, before they look at
// all endpoints again. An event loop needs 50 to 200 ns to look at one of many endpoints.
const restPerEndpoint = time.Microsecond

// afterScan chooses the endpoint of the last scan or, if all were in quarantine, calls lastResort with first. ok is
// false if the last scan is too old, or its endpoint is not usable.
func (s *Set) afterScan(l look, first *Endpoint) (c Choice, skipped uint32, ok bool) {
	last := s.lastScan.Load()
	if last == nil {
		return c, 0, false
	}
	age := l.Now.Sub(last.at)
	switch {
	case age < 0 || age >= time.Duration(len(s.endpoints))*restPerEndpoint: // below 0 if the clock was set back
		return c, 0, false
	case last.Endpoint == nil:
		return s.lastResort(l, first)
	}
	f := pickResult{Choice: Choice{Skipped: last.Skipped}}
	if l.ignoreSlowStart = true; !f.take(s, last.Endpoint, &l, 0) {
		return c, 0, false
	}
	n := uint32(len(s.endpoints))
	return s.reasoned(f.Choice, l.Tried), (last.index + n - l.turn%n) % n, true // so those after it follow in turn
}

// lastResort chooses from a Set whose endpoints are all in quarantine. The parameter first is the scheduler's first
// choice, or nil. lastResort returns it unless it was tried or is full. Otherwise it returns the next endpoint in
// rotation that was not tried and is not full, and the number of skipped ones. ok is false if it skipped maxScanned
// endpoints.
func (s *Set) lastResort(l look, first *Endpoint) (c Choice, skipped uint32, ok bool) {
	n := uint32(len(s.endpoints))
	for i := range uint32(maxScanned) {
		e := first
		if e == nil {
			e = s.endpoints[(l.turn%n+i)%n]
		}
		if !slices.Contains(l.Tried, e.Addr) && !e.Full() {
			return Choice{Endpoint: e, Reason: LastResort, Skipped: int(n) - len(l.Tried)}, i, true
		}
		first = nil
	}
	return Choice{}, 0, false
}

// pickResult holds the results of a choice so far.
type pickResult struct {
	Choice
	fallback    *Endpoint // the first one in quarantine
	last        *Endpoint // the last one in quarantine
	skipped     uint32    // endpoints skipped before fallback
	full        bool      // some are full
	healthyFull bool      // some are full and not in quarantine
	filtered    bool      // slow start skipped some, which are usable if no other is left
}

// take looks at an endpoint, and reports whether to choose it. skipped is how many were skipped before.
func (f *pickResult) take(s *Set, e *Endpoint, l *look, skipped uint32) bool {
	if slices.Contains(l.Tried, e.Addr) {
		return false
	}
	slow := s.slow != nil && s.leavesTurn(e, l, skipped)
	switch {
	case (l.skipFull || s.limited && !slow) && e.Full():
		f.full, f.healthyFull = true, f.healthyFull || e.available(l.Now, false) != Down
		return false
	case slow:
		f.filtered = true
		return false
	}
	switch e.available(l.Now, l.claim) {
	case HalfOpen:
		f.Reason = Probe
		fallthrough
	case Up:
		f.Endpoint = e
		return true
	}
	if f.fallback == nil {
		f.fallback, f.skipped = e, skipped
	}
	if e != f.last {
		f.Skipped++
	}
	f.last = e
	return false
}

// leavesTurn reports whether e is new and leaves its turn to others. skipped is how many endpoints were skipped before.
func (s *Set) leavesTurn(e *Endpoint, l *look, skipped uint32) bool {
	return !l.ignoreSlowStart && s.slow.skips(e, l.Now, l.turn+skipped)
}

// reasoned sets the reason of c.
func (s *Set) reasoned(c Choice, tried []netip.AddrPort) Choice {
	switch {
	case c.Reason == Probe:
	case !s.HasUntried(tried, 2):
		c.Reason = OnlyOne
	case s.order == nil:
		c.Reason = ByTurn
	default:
		c.Reason = s.reason
	}
	return c
}

// HasUntried reports whether at least atLeast endpoints are not in tried.
func (s *Set) HasUntried(tried []netip.AddrPort, atLeast int) bool {
	n := len(s.endpoints)
	if n-len(tried) >= atLeast { // without checking each
		return true
	}
	for _, addr := range tried {
		if s.Find(addr) != nil {
			n--
		}
	}
	return n >= atLeast
}
