// Package conn has the [Record] of a connection, or UDP session: everything that is known about it, with the
// attempts that were made for it and how it ended. The code that serves the connection reports each step to
// the Record once; observers, such as the trace and the metrics, see it there.
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

// Record is what is known about one connection, or UDP session, from accept to close and for as long as the
// trace keeps it. One goroutine at a time reports its steps; any may read. Where connections are many and
// idle, most of the memory of each is its Record: what many have in common is shared, and what few have is
// allocated when needed.
type Record struct {
	// Set before the first step, and not changed after it.
	ID       uint64 // unique in the process
	Port     *Port
	From, To netip.AddrPort
	Via      *netip.AddrPort // the load balancer that named the client; nil if the client itself has connected
	Began    time.Time

	// Most connections have one attempt, which succeeds. That is in first. Otherwise attempts has all of them.
	first       answered
	attempts    atomic.Pointer[[]Attempt] // replaced, never changed
	established atomic.Int64              // when an attempt succeeded, in ns after Began, at least 1; 0 if none has. Set last

	firstByte atomic.Int64 // see FirstByte; in ns. Until then at most 0: the time that does not count
	ending    atomic.Pointer[Ending]

	Trace Links
}

// Port is what all clients of a service port have in common. It never changes.
type Port struct {
	ID       config.PortID
	Protocol config.Protocol
	Unlogged bool // they are left out of the access log
	// Slow is how long a client may wait for the endpoint's first byte, see Record.Waited; 0 is for ever.
	Slow      time.Duration
	Observers []Observer // of the steps of all its clients
}

// Links are what package trace keeps in a Record. Its locks guard them.
type Links struct {
	Moving        Mover   // nil before it is established, and after the end
	Before, After *Record // in the list of those that are open
}

// Mover counts the bytes that were moved so far.
type Mover interface {
	Bytes() (toEndpoint, toClient int64)
}

// Attempt is an attempt to connect to an endpoint that has ended.
type Attempt struct {
	Endpoint   netip.AddrPort
	Pod        string
	Reason     balance.Reason // why this endpoint
	PassedOver int            // endpoints that were skipped because they are in quarantine
	Began      time.Duration  // after the connection was accepted
	Took       time.Duration
	Result     Result
	Seen       portal.Seen   // by the endpoint
	Queued     time.Duration // for how long the client had been in the queue by then
	Err        string        // "" if it succeeded
}

// Result says how an attempt, or a probe, ended.
type Result uint8

// The results.
const (
	Connected Result = iota
	Refused
	NoAnswer
	Failed // in any other way

	Results = iota // how many an attempt may have

	BadStatus    = Result(Results) // a probe by HTTP was answered, by a status that is no success
	ProbeResults = Results + 1
)

// String returns the word that metrics, the API and the access log use.
func (r Result) String() string {
	return [...]string{"connected", "refused", "no-answer", "failed", "bad-status"}[r]
}

// answered is a first attempt that succeeded.
type answered struct {
	choice      unique.Handle[choice]
	began, took time.Duration
	passedOver  uint16
	seen        portal.Seen
}

// choice is what many connections have in common: the endpoint that they are connected to, and why.
type choice struct {
	endpoint netip.AddrPort
	pod      string
	reason   balance.Reason
}

// Ending is how a connection ended.
type Ending struct {
	outcome.Result
	Took  time.Duration // since it was accepted
	Flags Flags
	// Served is set if it had an endpoint.
	Served bool
	to     uint8 // the attempt at whose endpoint it was, from 1 on; 0 if at none
}

// Accepted reports that the client has come.
func (r *Record) Accepted() { r.report(Step{Kind: Accepted, Time: r.Began}) }

// Attempted reports an attempt that has ended at now. If it succeeded, the connection is established, and there
// are no further attempts.
func (r *Record) Attempted(now time.Time, a Attempt) {
	took := now.Sub(r.Began)
	a.Began = took - a.Took
	step := Step{Kind: Attempted, Time: now, Took: took, Result: a.Result, Reason: a.Reason, Seen: a.Seen, Attempt: 1}
	if r.attempts.Load() == nil && a.Result == Connected && a.Queued == 0 && a.PassedOver <= math.MaxUint16 {
		r.first = answered{unique.Make(choice{a.Endpoint, a.Pod, a.Reason}), a.Began, a.Took, uint16(a.PassedOver), a.Seen}
	} else {
		longer := append(slices.Clip(r.Attempts()), a)
		r.attempts.Store(&longer)
		step.Attempt = len(longer)
	}
	if a.Result == Connected {
		r.established.Store(int64(max(1, took)))
		step.Flags = r.Flags(took, outcome.Open)
	}
	r.report(step)
}

// Delayed reports a wait between attempts: one that begins, if kind is Waiting, or is over, if it is Queued.
func (r *Record) Delayed(kind Kind, now time.Time, d time.Duration) {
	r.report(Step{Kind: kind, Time: now, Took: d, Attempt: r.Tries()})
}

// Adopted reports that the connection is inherited from the previous process, which had connected it to endpoint: its
// time to first byte, and what attempts that process made, are unknown.
func (r *Record) Adopted(now time.Time, endpoint netip.AddrPort, pod string) {
	r.first = answered{choice: unique.Make(choice{endpoint, pod, balance.Inherited})}
	r.established.Store(1)
	r.firstByte.Store(adopted)
	r.report(Step{Kind: Established, Time: now})
}

// Asked notes that the client, which had an endpoint already and had sent nothing so far, sent its first
// byte at now. It is called at most once, and not at the same time as Answered.
func (r *Record) Asked(now time.Time) {
	if at := r.established.Load(); at > 0 && r.firstByte.Load() == 0 {
		r.firstByte.Store(min(0, at-int64(now.Sub(r.Began))))
	}
}

// Answered reports that the endpoint's first byte for the client came at now, and returns FirstByte. It is
// called at most once.
func (r *Record) Answered(now time.Time) time.Duration {
	took := max(adopted+1, now.Sub(r.Began)+time.Duration(r.firstByte.Load()))
	r.firstByte.Store(int64(took))
	r.report(Step{Kind: FirstByte, Time: now, Took: took, Flags: r.Flags(took, outcome.Open)})
	return took
}

// Closed reports how the connection ended, and at which endpoint, if it had one.
func (r *Record) Closed(now time.Time, result outcome.Result, at netip.AddrPort) {
	took := now.Sub(r.Began)
	e := &Ending{Result: result, Took: took, Flags: r.Flags(took, result.Outcome), Served: at.IsValid()}
	if all := r.attempts.Load(); all != nil {
		for i := range min(len(*all), math.MaxUint8) {
			if (*all)[i].Endpoint == at {
				e.to = uint8(i + 1)
			}
		}
	} else if r.established.Load() > 0 && r.first.choice.Value().endpoint == at {
		e.to = 1
	}
	r.ending.Store(e)
	r.report(Step{Kind: Closed, Time: now, Took: took, Flags: e.Flags, Ending: e})
}

// report passes a step to the observers.
func (r *Record) report(s Step) {
	for _, o := range r.Port.Observers {
		o.Observe(r, s)
	}
}

// adopted stands for a time to the first byte that is not known.
const adopted = 1

// FirstByte returns how long the client waited for the endpoint's first byte, since it was accepted, but
// for the time in which it was connected and had not sent anything itself; 0 if none has come, or that
// is not known.
func (r *Record) FirstByte() time.Duration {
	if first := r.firstByte.Load(); first > adopted {
		return time.Duration(first)
	}
	return 0
}

// Attempts returns the attempts, the first one first. They are not to be changed.
func (r *Record) Attempts() []Attempt {
	established := r.established.Load() > 0 // before attempts, which may be stored meanwhile
	if all := r.attempts.Load(); all != nil {
		return *all
	}
	if established {
		return []Attempt{r.Attempt(1)}
	}
	return nil
}

// Tries returns how many attempts there are.
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

// Attempt returns the one with that number, from 1 to Tries.
func (r *Record) Attempt(n int) Attempt {
	if all := r.attempts.Load(); all != nil {
		return (*all)[n-1]
	}
	f, c := &r.first, r.first.choice.Value()
	return Attempt{Endpoint: c.endpoint, Pod: c.pod, Reason: c.reason, PassedOver: int(f.passedOver), Began: f.began, Took: f.took, Seen: f.seen}
}

// Established returns the attempt that succeeded, which is the last one.
func (r *Record) Established() (Attempt, bool) {
	if r.established.Load() == 0 {
		return Attempt{}, false
	}
	return r.Attempt(r.Tries()), true
}

// Ending returns how the connection ended; nil while it is open.
func (r *Record) Ending() *Ending { return r.ending.Load() }

// EndedAt returns the attempt at whose endpoint the connection ended; false if it had none.
func (r *Record) EndedAt() (Attempt, bool) {
	if e := r.ending.Load(); e != nil && e.to > 0 {
		return r.Attempt(int(e.to)), true
	}
	return Attempt{}, false
}

// Snapshot is a Record of an established connection as another process can continue it, as JSON. Values whose numbers
// may differ from one version to the next are in words.
type Snapshot struct {
	ID       uint64
	From, To netip.AddrPort
	Via      *netip.AddrPort `json:",omitempty"`
	Began    time.Time
	Attempts []AttemptSnapshot

	Established, FirstByte int64 // as a Record has them
}

// ForgetFirstByte makes the time to the first byte unknown.
func (s *Snapshot) ForgetFirstByte() { s.FirstByte = adopted }

// AttemptSnapshot is an Attempt in a Snapshot.
type AttemptSnapshot struct {
	Endpoint             netip.AddrPort
	Pod                  string `json:",omitempty"`
	Reason, Result, Seen string
	PassedOver           int `json:",omitempty"`
	Began, Took          time.Duration
	Queued               time.Duration `json:",omitempty"`
	Err                  string        `json:",omitempty"`
}

// Snapshot returns the Snapshot of r, of which no step is reported meanwhile.
func (r *Record) Snapshot() Snapshot {
	s := Snapshot{ID: r.ID, From: r.From, To: r.To, Via: r.Via, Began: r.Began, Established: r.established.Load(), FirstByte: r.firstByte.Load()}
	for _, a := range r.Attempts() {
		s.Attempts = append(s.Attempts, AttemptSnapshot{
			Endpoint: a.Endpoint, Pod: a.Pod, Reason: a.Reason.String(), Result: a.Result.String(), Seen: a.Seen.String(), PassedOver: a.PassedOver,
			Began: a.Began, Took: a.Took, Queued: a.Queued, Err: a.Err,
		})
	}
	return s
}

// Record returns the record that s is a Snapshot of, for a client of port. The error says what this version does not know.
func (s *Snapshot) Record(port *Port) (*Record, error) {
	r := &Record{ID: s.ID, Port: port, From: s.From, To: s.To, Via: s.Via, Began: s.Began}
	all := make([]Attempt, len(s.Attempts))
	for i, a := range s.Attempts {
		reason, err1 := named(a.Reason, balance.Reason(balance.Reasons))
		result, err2 := named(a.Result, Result(Results))
		seen, err3 := named(a.Seen, portal.Seen(portal.Seens))
		if err := cmp.Or(err1, err2, err3); err != nil {
			return nil, err
		}
		all[i] = Attempt{
			Endpoint: a.Endpoint, Pod: a.Pod, Reason: reason, Result: result, Seen: seen, PassedOver: a.PassedOver,
			Began: a.Began, Took: a.Took, Queued: a.Queued, Err: a.Err,
		}
	}
	last := len(all) - 1
	if last < 0 || all[last].Result != Connected || s.Established <= 0 {
		return nil, errors.New("connection not established")
	}
	if a := all[last]; last == 0 && a.Queued == 0 && a.PassedOver <= math.MaxUint16 {
		r.first = answered{unique.Make(choice{a.Endpoint, a.Pod, a.Reason}), a.Began, a.Took, uint16(a.PassedOver), a.Seen}
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
