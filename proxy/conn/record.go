// Package conn has the [Record] of a connection or UDP session: its addresses, its attempts and its end. The code that
// serves the connection reports each step to the Record once. The Record passes the step to its Port's observers, such
// as the trace and the metrics, which read all other data from the Record.
package conn

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
	"unique"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/outcome"
)

// Record is the data of one connection or UDP session, from accept to close and for as long as the trace keeps it. One
// goroutine at a time reports its steps; any may read. With many idle connections, Records are most of the memory. So
// data that many Records have in common is shared, and data that few have is allocated when needed.
type Record struct {
	// Set before the first step, and not changed after it.
	ID       uint64 // unique in the process
	Port     *Port
	From, To netip.AddrPort
	Via      *netip.AddrPort // the load balancer that named the client; nil if the client itself has connected
	Start    time.Time

	// Most connections have one attempt, which succeeds: it is in first. Otherwise attempts has all attempts.
	first       answered
	attempts    atomic.Pointer[[]Attempt] // replaced, never changed
	established atomic.Int64              // end of the successful attempt, in ns after Start; 0 if none. Set last

	firstByte atomic.Int64 // result of FirstByte in ns, or unknownFirstByte; before that byte see ClientFirstByte
	ending    atomic.Pointer[Ending]

	Trace Links
}

// Port is the part that all clients of a service port share. It never changes.
type Port struct {
	ID       config.PortID
	Protocol config.Protocol
	Unlogged bool // excluded from the access log
	// Slow is the wait for the endpoint's first byte above which a connection has the flag Slow (see Record.Waited); 0
	// means never.
	Slow      time.Duration
	Observers []Observer // of the steps of all its clients
}

// Links are the fields of a Record that belong to package trace. Its locks guard them.
type Links struct {
	Moving        Mover   // nil before a connection is established, and after its end
	Before, After *Record // in the list of open connections
}

// Mover counts the bytes forwarded so far.
type Mover interface {
	Bytes() (toEndpoint, toClient int64)
}

// Attempt is a finished attempt to connect to an endpoint.
type Attempt struct {
	Endpoint      netip.AddrPort
	Pod           string         `json:",omitempty"`
	Reason        balance.Reason // why this endpoint
	Skipped       int            `json:",omitempty"` // see balance.Choice
	Start         time.Duration  // after the connection was accepted
	Duration      time.Duration
	Result        Result
	SourceAddress portal.SourceAddress // source address that the endpoint sees
	Queued        time.Duration        `json:",omitempty"` // total time in the queue so far
	Err           string               `json:",omitempty"` // "" if it succeeded
}

// Result is the result of an attempt or a probe.
type Result uint8

const (
	Connected Result = iota
	Refused
	NoAnswer
	Failed // in any other way

	Results = iota // number of values for attempts

	BadStatus    = Result(Results) // an HTTP probe got a status other than success
	ProbeResults = Results + 1
)

// String returns the word used in metrics, the API and the access log.
func (r Result) String() string {
	return [...]string{"connected", "refused", "no-answer", "failed", "bad-status"}[r]
}

// answered is a first attempt that succeeded.
type answered struct {
	choice      unique.Handle[choice]
	began, took time.Duration
	skipped     uint16
	seen        portal.SourceAddress
}

// choice is shared by many connections: their endpoint, and the reason why it was chosen.
type choice struct {
	endpoint netip.AddrPort
	pod      string
	reason   balance.Reason
}

// Ending is the end of a connection.
type Ending struct {
	outcome.Result
	Duration time.Duration // since it was accepted
	Flags    Flags
	// Served is set if the connection had an endpoint.
	Served bool
}

// Accepted reports that the client has connected.
func (r *Record) Accepted() { r.report(Step{Kind: Accepted, Time: r.Start}) }

// Attempted reports an attempt that ended at now. If it succeeded, the connection is established, and no attempts
// follow.
func (r *Record) Attempted(now time.Time, a Attempt) {
	elapsed := now.Sub(r.Start)
	a.Start = elapsed - a.Duration
	step := Step{Kind: Attempted, Time: now, Duration: elapsed, Result: a.Result, Reason: a.Reason, SourceAddress: a.SourceAddress, Attempt: 1}
	if r.attempts.Load() == nil && a.Result == Connected && a.Queued == 0 && a.Skipped <= math.MaxUint16 {
		r.first = answered{unique.Make(choice{a.Endpoint, a.Pod, a.Reason}), a.Start, a.Duration, uint16(a.Skipped), a.SourceAddress}
	} else {
		longer := append(slices.Clip(r.Attempts()), a)
		r.attempts.Store(&longer)
		step.Attempt = len(longer)
	}
	if a.Result == Connected {
		r.established.Store(int64(max(1, elapsed)))
		step.Flags = r.Flags(elapsed, outcome.Open)
	}
	r.report(step)
}

// Delayed reports a wait of duration d before an attempt, or before the search ends. It is called at the start of the
// wait if kind is Waiting, and at its end if kind is Queued.
func (r *Record) Delayed(kind Kind, now time.Time, d time.Duration) {
	r.report(Step{Kind: kind, Time: now, Duration: d, Attempt: r.Tries()})
}

// Adopted reports that the connection is inherited from the previous process, which had connected it to endpoint. Its
// time to first byte is unknown, and its attempts are replaced by one with the reason Inherited.
func (r *Record) Adopted(now time.Time, endpoint netip.AddrPort, pod string) {
	r.first = answered{choice: unique.Make(choice{endpoint, pod, balance.Inherited})}
	r.established.Store(1)
	r.firstByte.Store(unknownFirstByte)
	r.report(Step{Kind: Established, Time: now})
}

// ClientFirstByte records that the client of an established connection sent its first byte at now. Until the endpoint's
// first byte, firstByte is then minus the time in which the client was connected and silent; before, it is 0.
// ClientFirstByte is called at most once, and never concurrently with EndpointFirstByte.
func (r *Record) ClientFirstByte(now time.Time) {
	if at := r.established.Load(); at > 0 && r.firstByte.Load() == 0 {
		r.firstByte.Store(min(0, at-int64(now.Sub(r.Start))))
	}
}

// EndpointFirstByte records that the endpoint's first byte for the client arrived at now. It returns the part of
// FirstByte after the start of the successful attempt. It is called at most once.
func (r *Record) EndpointFirstByte(now time.Time) time.Duration {
	took := max(unknownFirstByte+1, now.Sub(r.Start)+time.Duration(r.firstByte.Load()))
	r.firstByte.Store(int64(took))
	r.report(Step{Kind: FirstByte, Time: now, Duration: took, Flags: r.Flags(took, outcome.Open)})
	began := r.first.began
	if all := r.attempts.Load(); all != nil {
		began = (*all)[len(*all)-1].Start
	}
	return max(0, took-began)
}

// Closed reports the end of the connection. The parameter at is its endpoint, or invalid if it had none.
func (r *Record) Closed(now time.Time, result outcome.Result, at netip.AddrPort) {
	took := now.Sub(r.Start)
	e := &Ending{Result: result, Duration: took, Flags: r.Flags(took, result.Outcome), Served: at.IsValid()}
	r.ending.Store(e)
	r.report(Step{Kind: Closed, Time: now, Duration: took, Flags: e.Flags, Ending: e})
}

// report passes a step to the observers.
func (r *Record) report(s Step) {
	for _, o := range r.Port.Observers {
		o.Observe(r, s)
	}
}

// unknownFirstByte is the value of firstByte for an unknown time.
const unknownFirstByte = 1

// FirstByte returns the time from accept to the endpoint's first byte. It omits the time in which the client was
// connected to an endpoint and had sent nothing. It is 0 if no byte has arrived, or if the time is unknown.
func (r *Record) FirstByte() time.Duration {
	if first := r.firstByte.Load(); first > unknownFirstByte {
		return time.Duration(first)
	}
	return 0
}

// WaitsForByte returns how long the client of an open connection has waited for the endpoint's first byte. It is 0 if
// that byte has arrived, if the time is unknown, or if no endpoint is connected. Once the client has sent data, it
// omits the same time as FirstByte. Before that, it is the time since accept.
func (r *Record) WaitsForByte(now time.Time) time.Duration {
	if first := r.firstByte.Load(); first <= 0 && r.established.Load() > 0 {
		return now.Sub(r.Start) + time.Duration(first)
	}
	return 0
}

// Attempts returns the attempts, the first one first. Callers must not change them.
func (r *Record) Attempts() []Attempt {
	// Read first: if attempts were stored between the two reads, first would seem to have the only one.
	established := r.established.Load() > 0
	if all := r.attempts.Load(); all != nil {
		return *all
	}
	if established {
		return []Attempt{r.Attempt(1)}
	}
	return nil
}

// Tries returns the number of attempts.
func (r *Record) Tries() int {
	established := r.established.Load() > 0 // as in Attempts
	switch all := r.attempts.Load(); {
	case all != nil:
		return len(*all)
	case established:
		return 1
	}
	return 0
}

// Attempt returns the attempt with number n, from 1 to Tries.
func (r *Record) Attempt(n int) Attempt {
	if all := r.attempts.Load(); all != nil {
		return (*all)[n-1]
	}
	f, c := &r.first, r.first.choice.Value()
	return Attempt{Endpoint: c.endpoint, Pod: c.pod, Reason: c.reason, Skipped: int(f.skipped), Start: f.began, Duration: f.took, SourceAddress: f.seen}
}

// Established returns the successful attempt, which is the last one.
func (r *Record) Established() (Attempt, bool) {
	if r.established.Load() == 0 {
		return Attempt{}, false
	}
	return r.Attempt(r.Tries()), true
}

// Ending returns the end of the connection; nil while it is open.
func (r *Record) Ending() *Ending { return r.ending.Load() }

// LastEndpoint returns the attempt whose endpoint the connection had at its end; false if none.
func (r *Record) LastEndpoint() (Attempt, bool) {
	if e, n := r.ending.Load(), r.Tries(); e != nil && e.Served && n > 0 {
		return r.Attempt(n), true
	}
	return Attempt{}, false
}

// Snapshot is the JSON form of the Record of an established connection, from which another process continues the
// connection. Enumerations are encoded as strings, since their numbers may differ between versions.
type Snapshot struct {
	ID       uint64
	From, To netip.AddrPort
	Via      *netip.AddrPort `json:",omitempty"`
	Start    time.Time
	Attempts []AttemptSnapshot

	Established, FirstByte int64 // as in Record
}

// ForgetFirstByte makes the time to the first byte unknown.
func (s *Snapshot) ForgetFirstByte() { s.FirstByte = unknownFirstByte }

// AttemptSnapshot is an Attempt in a Snapshot. Its string fields replace those of the Attempt.
type AttemptSnapshot struct {
	Attempt
	Reason, Result, SourceAddress string
}

// Snapshot returns the Snapshot of r. No step may be reported meanwhile.
func (r *Record) Snapshot() Snapshot {
	s := Snapshot{ID: r.ID, From: r.From, To: r.To, Via: r.Via, Start: r.Start, Established: r.established.Load(), FirstByte: r.firstByte.Load()}
	for _, a := range r.Attempts() {
		s.Attempts = append(s.Attempts, AttemptSnapshot{a, a.Reason.String(), a.Result.String(), a.SourceAddress.String()})
	}
	return s
}

// Record returns the Record that s describes, for a client of port. It returns an error for strings that this version
// does not know, and if the connection was not established.
func (s *Snapshot) Record(port *Port) (*Record, error) {
	now := time.Now() // has a monotonic clock reading, which s.Start has lost
	r := &Record{ID: s.ID, Port: port, From: s.From, To: s.To, Via: s.Via, Start: now.Add(s.Start.Sub(now))}
	all := make([]Attempt, len(s.Attempts))
	for i, a := range s.Attempts {
		var err1, err2, err3 error
		all[i] = a.Attempt
		all[i].Reason, err1 = named(a.Reason, balance.Reason(balance.Reasons))
		all[i].Result, err2 = named(a.Result, Result(Results))
		all[i].SourceAddress, err3 = named(a.SourceAddress, portal.SourceAddress(portal.SourceAddressCount))
		if err := cmp.Or(err1, err2, err3); err != nil {
			return nil, err
		}
	}
	last := len(all) - 1
	if last < 0 || all[last].Result != Connected || s.Established <= 0 {
		return nil, errors.New("connection not established")
	}
	if a := all[last]; last == 0 && a.Queued == 0 && a.Skipped <= math.MaxUint16 {
		r.first = answered{unique.Make(choice{a.Endpoint, a.Pod, a.Reason}), a.Start, a.Duration, uint16(a.Skipped), a.SourceAddress}
	} else {
		r.attempts.Store(&all)
	}
	r.established.Store(s.Established)
	r.firstByte.Store(s.FirstByte)
	return r, nil
}

// Continued reports that the connection, whose record is from a Snapshot, is inherited from the previous process.
func (r *Record) Continued(now time.Time) {
	r.Accepted()
	r.report(Step{Kind: Established, Time: now})
}

// named returns the value below end whose String is word.
func named[T interface {
	~uint8
	String() string
}](word string, end T) (T, error) {
	for v := range end {
		if v.String() == word {
			return v, nil
		}
	}
	return 0, fmt.Errorf("unknown value %q", word)
}
