package trace

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/conn"
)

// keptChanges is the number of changes that a Log keeps in addition to the steps of connections.
const keptChanges = 1024

// Log holds the last events and the open connections. It is safe for concurrent use.
type Log struct {
	seq   atomic.Uint64                 // of the newest event; incremented under the lock of the event's ring
	more  atomic.Pointer[chan struct{}] // closed when an event is added; nil if no reader waits
	parts []part                        // their number is a power of two
	shift int                           // see spread
	began time.Time
	kept  kept

	// reading is taken by each reader before the locks of all parts and of changes. So writers wait for at most one
	// reader, whatever the number of readers.
	reading sync.Mutex

	changing sync.Mutex // guards changes
	changes  ring[*Event]
}

// part holds those open connections and last steps whose connection numbers belong to it (see spread). With several
// parts, a writer waits for few others, and a reader of open connections blocks few writers.
type part struct {
	mu    sync.Mutex
	first *conn.Record // head of the list of open connections
	steps ring[record] // in ascending order of their numbers
	ended uint32       // number of ended connections; lower 32 bits
}

// add adds c to the open connections. The caller holds mu.
func (p *part) add(c *conn.Record) {
	if c.Trace.After = p.first; c.Trace.After != nil {
		c.Trace.After.Trace.Before = c
	}
	p.first = c
}

// remove removes c from the open connections. The caller holds mu.
func (p *part) remove(c *conn.Record) {
	switch {
	case c.Trace.Before != nil:
		c.Trace.Before.Trace.After = c.Trace.After
	case p.first == c:
		p.first = c.Trace.After
	default:
		return // already removed
	}
	if c.Trace.After != nil {
		c.Trace.After.Trace.Before = c.Trace.Before
	}
	c.Trace.Before, c.Trace.After = nil, nil
}

const (
	// mostParts is the number of parts of a large Log: more than the CPUs that record steps at the same moment.
	mostParts = 16
	// worthParts is the minimum number of kept steps for which a Log has mostParts; a smaller one has 1.
	worthParts = 64 * mostParts
)

// NewLog returns a Log that keeps about the given number of the last steps of connections (at least 1), and the last
// keptChanges changes. Its memory grows with the events: 40 bytes per step, and about 250 per connection that is open
// or has a kept step.
func NewLog(steps int) *Log {
	parts := 1
	if steps >= worthParts {
		parts = mostParts
	}
	l := &Log{parts: make([]part, parts), shift: 64 - bits.TrailingZeros(uint(parts)), changes: newRing[*Event](keptChanges), began: time.Now()}
	for i := range l.parts {
		l.parts[i].steps = newRing[record]((max(steps, 1) + parts - 1) / parts)
	}
	return l
}

// Keep makes l also keep the last ends of connections with a problem (see conn.Flags), up to the given number. Call it
// before the first event. Each connection takes about 400 bytes, and 120 for each attempt if it has several.
func (l *Log) Keep(connections int) {
	l.kept = kept{max: connections, shares: map[share]*shared{}}
}

// spread distributes connection numbers evenly over the parts, even if they are multiples of a number. A connection
// belongs to the part with index spread*ID >> shift (see Knuth, The Art of Computer Programming, 6.4: Fibonacci
// hashing).
const spread = 0x9E3779B97F4A7C15

// Observe implements conn.Observer: it records the step.
func (l *Log) Observe(c *conn.Record, s conn.Step) {
	if s.Kind == conn.FirstByte {
		return // the conn.Record holds it
	}
	p := &l.parts[c.ID*spread>>l.shift]
	p.mu.Lock()
	switch s.Kind {
	case conn.Accepted:
		p.add(c)
	case conn.Closed:
		c.Trace.Moving = nil // so that the Mover is not kept in memory as long as the step
		p.remove(c)
		p.ended++
	}
	r := record{of: c, time: s.Time.UnixNano(), kind: Kind(s.Kind), attempt: uint8(s.Attempt), ended: p.ended}
	if s.Kind == conn.Waiting || s.Kind == conn.Queued {
		r.took = s.Duration
	}
	r.seq = l.seq.Add(1)
	if s.Kind == conn.Attempted && s.Result == conn.Connected {
		p.steps.add(r, record{of: c, time: r.time, kind: Established, ended: r.ended, seq: l.seq.Add(1)})
	} else {
		p.steps.add(r)
	}
	p.mu.Unlock()
	if s.Kind == conn.Closed && s.Flags != 0 {
		l.kept.add(r, s.Ending)
	}
	if l.more.Load() != nil {
		l.notify()
	}
}

// Change records a change. l owns e from then on.
func (l *Log) Change(e *Event) {
	l.changing.Lock()
	e.Seq = l.seq.Add(1)
	l.changes.add(e)
	l.changing.Unlock()
	l.notify()
}

func (e *Event) number() uint64 { return e.Seq }

// notify wakes the readers that wait for an event.
func (l *Log) notify() {
	if more := l.more.Load(); more != nil && l.more.CompareAndSwap(more, nil) {
		close(*more)
	}
}

// Moves sets the Mover that moves the connection's bytes from now on. It does nothing if the connection has ended: m
// may already be done.
func (l *Log) Moves(c *conn.Record, m conn.Mover) {
	p := &l.parts[c.ID*spread>>l.shift]
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Ending() == nil {
		c.Trace.Moving = m
	}
}

// Bytes returns the number of bytes moved so far. For an open connection without a Mover, it returns 0.
func (l *Log) Bytes(c *conn.Record) (toEndpoint, toClient int64) {
	p := &l.parts[c.ID*spread>>l.shift]
	p.mu.Lock()
	m, how := c.Trace.Moving, c.Ending()
	p.mu.Unlock()
	switch {
	case how != nil: // the connection has ended
		return how.ToEndpoint, how.ToClient
	case m == nil:
		return 0, 0
	}
	return m.Bytes()
}

// Moved is a number of bytes in each direction.
type Moved struct{ ToEndpoint, ToClient int64 }

// Plus returns the sum of m and o.
func (m Moved) Plus(o Moved) Moved {
	return Moved{m.ToEndpoint + o.ToEndpoint, m.ToClient + o.ToClient}
}

// OpenBytes returns what the open connections have moved so far, by service port and endpoint. The endpoint is zero for
// those that are not established.
func (l *Log) OpenBytes() map[config.PortID]map[netip.AddrPort]Moved {
	ports := map[config.PortID]map[netip.AddrPort]Moved{}
	for _, c := range l.Open(func(*conn.Record) bool { return true }) {
		of := ports[c.Port.ID]
		if of == nil {
			of = map[netip.AddrPort]Moved{}
			ports[c.Port.ID] = of
		}
		to, _ := c.Established()
		toEndpoint, toClient := l.Bytes(c)
		of[to.Endpoint] = of[to.Endpoint].Plus(Moved{toEndpoint, toClient})
	}
	return ports
}

// Waiting returns, by endpoint, how many open connections of a service port have sent data, and have waited at least d
// for the first byte from it.
func (l *Log) Waiting(port config.PortID, now time.Time, d time.Duration) map[netip.AddrPort]int64 {
	n := map[netip.AddrPort]int64{}
	for _, c := range l.Open(func(c *conn.Record) bool { return c.Port.ID == port && c.WaitsForByte(now) >= d }) {
		if toEndpoint, toClient := l.Bytes(c); toEndpoint > 0 && toClient == 0 {
			to, _ := c.Established()
			n[to.Endpoint]++
		}
	}
	return n
}

// lockForReading blocks writers, so that no event is added until unlockForReading.
func (l *Log) lockForReading() {
	l.reading.Lock()
	for i := range l.parts {
		l.parts[i].mu.Lock()
	}
	l.changing.Lock()
}

func (l *Log) unlockForReading() {
	l.changing.Unlock()
	for i := range l.parts {
		l.parts[i].mu.Unlock()
	}
	l.reading.Unlock()
}

// Open returns the open connections for which match returns true, unordered. It calls match without holding a lock.
func (l *Log) Open(match func(*conn.Record) bool) (list []*conn.Record) {
	for i := range l.parts {
		list = l.parts[i].open(list)
	}
	return slices.DeleteFunc(list, func(c *conn.Record) bool { return !match(c) })
}

// Find returns the connection with number id: its Record if it is open, or else its Closed event if l still has that.
func (l *Log) Find(id uint64) (open *conn.Record, ended *Event) {
	open, closed := l.parts[id*spread>>l.shift].find(id)
	if open == nil && closed.of == nil {
		closed = l.kept.find(id)
	}
	if closed.of == nil {
		return open, nil
	}
	e := closed.event()
	return nil, &e
}

// Ended returns the last Closed events for which match returns true, newest first, at most max.
func (l *Log) Ended(max int, match func(*Event) bool) (list []Event) {
	for _, r := range l.closed() {
		if len(list) == max {
			break
		}
		if e := r.event(); match(&e) {
			list = append(list, e)
		}
	}
	return list
}

// Reaches returns since when l has all ended connections, and since when it has all with a problem. The latter
// concerns only service ports for which match returns true.
func (l *Log) Reaches(match func(config.PortID) bool) Reaches {
	all := l.began
	for i := range l.parts {
		p := &l.parts[i]
		p.mu.Lock()
		if oldest := p.steps.oldest(); oldest > 1 {
			all = later(all, p.steps.at(oldest).time)
		}
		p.mu.Unlock()
	}
	r := Reaches{All: all, Amiss: all}
	if l.kept.max > 0 {
		if amiss := later(l.began, l.kept.reaches(match)); amiss.Before(all) {
			r.Amiss = amiss
		}
	}
	return r
}

// later returns the later of t and a Unix time in nanoseconds.
func later(t time.Time, nanoseconds int64) time.Time {
	if other := time.Unix(0, nanoseconds); other.After(t) {
		return other
	}
	return t
}

// closed returns all Closed steps of the parts and of kept, newest first.
func (l *Log) closed() (list []record) {
	for i := range l.parts {
		p := &l.parts[i]
		p.mu.Lock()
		for _, r := range p.steps.events {
			if r.kind == Closed {
				list = append(list, r)
			}
		}
		p.mu.Unlock()
	}
	l.kept.each(func(r record) bool {
		list = append(list, r)
		return true
	})
	slices.SortFunc(list, func(a, b record) int { return cmp.Compare(b.seq, a.seq) })
	return slices.CompactFunc(list, func(a, b record) bool { return a.seq == b.seq })
}

// ring keeps the last events added to it, in the order of their numbers. The nth event added is at place n, from 1.
type ring[E interface{ number() uint64 }] struct {
	max    int
	added  uint64
	events []E // the event at place n is at (n-1) % max
}

// newRing returns a ring for max events. It allocates the slice at once, but the kernel provides memory only for the
// part that is used.
func newRing[E interface{ number() uint64 }](max int) ring[E] {
	return ring[E]{max: max, events: make([]E, 0, max)}
}

func (r *ring[E]) add(events ...E) {
	for _, e := range events {
		if r.added++; len(r.events) < r.max {
			r.events = append(r.events, e)
		} else {
			r.events[(r.added-1)%uint64(r.max)] = e
		}
	}
}

// at returns the event at place, which must still be kept.
func (r *ring[E]) at(place uint64) *E { return &r.events[(place-1)%uint64(r.max)] }

// oldest returns the place of the oldest kept event.
func (r *ring[E]) oldest() uint64 { return r.added - uint64(len(r.events)) + 1 }

// behind returns the place of the first kept event with a number above seq; added+1 if there is none.
func (r *ring[E]) behind(seq uint64) uint64 {
	oldest := r.oldest()
	n := sort.Search(len(r.events), func(i int) bool { return (*r.at(oldest + uint64(i))).number() > seq })
	return oldest + uint64(n)
}
