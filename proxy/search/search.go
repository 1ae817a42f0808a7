package search

import (
	"net/netip"
	"time"

	"github.com/usherproxy/usher/affinity"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/latency"
	"github.com/usherproxy/usher/proxy/outcome"
)

// DefaultSchedule is the schedule of kube-proxy's userspace mode.
var DefaultSchedule = []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}

// maxAttempts limits the attempts of one search, so that a Service with many endpoints that all refuse costs little.
const maxAttempts = 32

// Search is one client's search for an endpoint. The driver sets the exported fields: Affinity before each Next,
// SourceAddress before it reports the result of an attempt, Policy before Failed, and the others before the first Next.
// One goroutine at a time may call its methods.
type Search struct {
	Schedule      []time.Duration // lengths of the time slots; empty: each endpoint is tried once, but see retryOthersAfter
	Policy        balance.Policy  // of quarantine
	Affinity      *affinity.Table // nil for none
	Client        netip.Addr
	VIP           netip.Addr           // the VIP that the client connected to; some schedulers use it
	Record        *conn.Record         // has the attempts, and the client's start time
	SourceAddress portal.SourceAddress // whose address the endpoint of an attempt sees, and why

	waitedOutSlot   bool              // the last step was to wait for the end of a time slot
	tried           []netip.AddrPort  // endpoints tried since Next last cleared the list
	buffer          [2]netip.AddrPort // backing array of tried; most searches need no more
	count           int               // attempts so far
	current         balance.Choice    // of the current attempt
	waiter          *balance.Waiter   // nil until the client has to wait
	started         time.Time         // start of the current attempt
	timeSlot        int               // index in Schedule; len(Schedule) after the last time slot
	slotEnd         time.Time         // end of the current time slot
	final           outcome.Result    // the client's result once no attempt may follow; until then, its Outcome is Open
	limitAfterQueue time.Duration     // time limit of the attempt that begins when the client gets a free slot
	queuedAt        time.Time         // start of the wait for a free slot; zero if it does not wait
	waitedInQueue   time.Duration     // duration of earlier waits for a free slot
}

// Action is the kind of a Step.
type Action uint8

const (
	Dial Action = iota
	Wait
	GiveUp
)

// Step is an action with its parameters.
type Step struct {
	Do       Action
	Endpoint *balance.Endpoint // to Dial; the driver releases it after the attempt or connection
	For      time.Duration     // duration of the Wait, or limit of the Dial; 0 means no limit
	Woken    <-chan struct{}   // a value also ends the Wait; nil unless the client is queued
	Behind   bool              // other clients are ahead in the queue: a change of the endpoints does not end the Wait
	Result   outcome.Result    // of the client, for GiveUp
}

// Next returns the step to perform at the time now. It chooses endpoints from set. It is called at the start, after
// Failed or Abandoned, and after a Wait. The set may differ each time.
func (s *Search) Next(set *balance.Set, now time.Time) Step {
	if !s.queuedAt.IsZero() {
		// After a long wait, endpoints that failed may be back: try them again, as after a time slot. Try only untried
		// ones if this is the last time slot, if there is no Schedule, or if only one of maxAttempts is left.
		if now.Sub(s.queuedAt) >= max(s.limitAfterQueue, lookAgain) && s.timeSlot+1 < len(s.Schedule) && s.count < maxAttempts-1 {
			s.tried = s.tried[:0]
		}
		if set.HasUntried(s.tried, 1) {
			return s.begin(set, now, s.limitAfterQueue)
		}
		s.LeaveQueue(now)
	}
	switch {
	case s.final.Outcome != outcome.Open:
		return Step{Do: GiveUp, Result: s.final}
	case len(s.Schedule) == 0:
		if s.count > 0 && now.Sub(s.started) >= retryOthersAfter {
			s.tried = append(s.tried[:0], s.current.Endpoint.Addr) // count is not reset: at most maxAttempts in all
		}
		step := s.begin(set, now, 0)
		if step.Do == GiveUp && s.count > 0 {
			step.Result = allFailed
		}
		return step
	case s.slotEnd.IsZero():
		s.slotEnd = now.Add(s.Schedule[0])
	}
	for s.timeSlot < len(s.Schedule) {
		if left := s.slotEnd.Sub(now); left > 0 {
			s.waitedOutSlot = len(s.tried) > 0 && set.Len() > 0 && !set.HasUntried(s.tried, 1)
			if !s.waitedOutSlot {
				return s.begin(set, now, s.Schedule[s.timeSlot])
			}
			s.Record.Delayed(conn.Waiting, now, left)
			return Step{Do: Wait, For: left}
		}
		if !set.HasUntried(s.tried, 1) {
			s.tried = s.tried[:0]
		}
		if s.timeSlot++; s.timeSlot < len(s.Schedule) {
			s.slotEnd = now.Add(s.Schedule[s.timeSlot])
		}
	}
	if s.waitedOutSlot {
		s.waitedOutSlot = false
		return s.begin(set, now, s.Schedule[0])
	}
	return Step{Do: GiveUp, Result: allFailed}
}

// retryOthersAfter applies without a Schedule. If an attempt ends after at least that long, the other endpoints may get
// another attempt, since those that failed may be back. In UDP, an attempt lasts until the endpoint answers, and some
// endpoints never do by design. The kernel reports an unreachable host after 3 s (arp(7)); the value is higher, so that
// such a failure does not count as a long attempt.
const retryOthersAfter = 5 * time.Second

// begin begins an attempt with the next endpoint, queues the client, or gives up.
func (s *Search) begin(set *balance.Set, now time.Time, limit time.Duration) Step {
	if s.count == maxAttempts {
		return Step{Do: GiveUp, Result: allFailed}
	}
	choice, ok := s.choose(set, now)
	if !ok && choice.Full() {
		return s.queue(set, now, limit)
	}
	if !s.queuedAt.IsZero() {
		s.LeaveQueue(now)
		switch choice.Reason {
		case balance.Affinity, balance.Probe, balance.LastResort: // these take precedence
		default:
			choice.Reason = balance.FirstInQueue
		}
	}
	if !ok {
		return Step{Do: GiveUp, Result: noEndpoint}
	}
	if s.count++; s.count == 1 {
		s.tried = s.buffer[:0]
	}
	s.tried = append(s.tried, choice.Endpoint.Addr)
	s.current, s.started = choice, now
	return Step{Do: Dial, Endpoint: choice.Endpoint, For: limit}
}

// Connected records that the attempt has succeeded: the search is over, and the connection is established.
func (s *Search) Connected(now time.Time) {
	s.record(now, nil)
	s.current.Endpoint.Times().Connect.Observe(latency.Seconds, now, now.Sub(s.started).Seconds())
	s.current.Endpoint.Report(balance.Report{Kind: balance.Connected, Now: now}, balance.Policy{})
}

// Failed records that the attempt has failed. If the endpoint caused that (see [EndpointAtFault]), it is quarantined,
// and the client's affinity to it is removed. If only this client gets no answer, the path between client and endpoint
// may be the cause (see [balance.Endpoint.Report]). The endpoint is quarantined in this case, too, but Failed leaves
// the affinity: it is lost only if this search then uses another endpoint. If every other endpoint would fail too, or
// this node is out of resources, the next step is GiveUp.
func (s *Search) Failed(now time.Time, err error) {
	plain := Plain(err)
	s.record(now, plain)
	switch {
	case futile(err):
		s.final = outcome.Result{Outcome: outcome.AttemptsFailed, Err: plain}
	case OutOfResources(err):
		s.final = outcome.Result{Outcome: outcome.Limit, Err: plain}
	}
	if !EndpointAtFault(err) {
		return
	}
	failure := balance.Report{Kind: balance.ConnectFailed, Start: s.started, Now: now, Err: plain}
	if s.SourceAddress.IsClient() && plain == ErrNoAnswer {
		failure.Client = s.Client
	}
	if s.current.Endpoint.Report(failure, s.Policy).Blamed && s.Affinity != nil {
		s.Affinity.Forget(s.Client, s.current.Endpoint.Addr)
	}
}

// Abandoned records that the attempt was given up for a reason that is not the endpoint's fault. Other endpoints may be
// tried.
func (s *Search) Abandoned(now time.Time, why error) { s.record(now, Plain(why)) }

// record adds the attempt and its result to the connection's record.
func (s *Search) record(now time.Time, err error) {
	a := conn.Attempt{Endpoint: s.current.Endpoint.Addr, Pod: s.current.Endpoint.Pod, Reason: s.current.Reason, Skipped: s.current.Skipped,
		Duration: now.Sub(s.started), SourceAddress: s.SourceAddress, Queued: s.waitedInQueue}
	if err != nil {
		a.Result, a.Err = ResultOf(err), err.Error()
	}
	s.Record.Attempted(now, a)
}

// choose takes the endpoint of the client's affinity, unless it was removed, was tried, or is in quarantine. (A
// quarantine that only one client's failures caused does not count.) Otherwise it takes the scheduler's choice. The
// client must wait for a free slot if other clients are ahead in the queue, or if the endpoint of its affinity is full.
// Without a usable affinity, it must wait if all untried endpoints outside quarantine are full.
func (s *Search) choose(set *balance.Set, now time.Time) (balance.Choice, bool) {
	ask := balance.Request{Now: now, Client: s.Client, VIP: s.VIP, Tried: s.tried, Retry: s.count > 0}
	var previous netip.AddrPort
	if s.Affinity != nil {
		previous, _ = s.Affinity.Get(s.Client, now)
	}
	for {
		choice, ok := set.Take(ask, previous, s.waiter)
		if !ok && s.waiter == nil && choice.Full() {
			s.waiter = new(balance.Waiter)
			continue
		}
		if !ok || s.Affinity == nil {
			return choice, ok
		}
		addr := choice.Endpoint.Addr
		if previous == addr {
			s.Affinity.Set(s.Client, addr, now)
			return choice, true
		}
		if previous.IsValid() {
			s.Affinity.Forget(s.Client, previous)
		}
		claimed := s.Affinity.Claim(s.Client, addr, now)
		// If claimed is previous, another connection of the client has restored the affinity that was just forgotten.
		// This search cannot use that endpoint, and goes on with its own choice.
		if claimed == addr || claimed == previous {
			return choice, true
		}
		// Another connection of the client was faster.
		choice.Endpoint.Release()
		previous = claimed
	}
}

// lookAgain is the interval at which the client at the front of a queue looks at the endpoints without being woken:
// nothing wakes it when a quarantine expires. It is also the shortest wait in the queue after which endpoints that
// failed are tried again.
const lookAgain = time.Second

// queue returns the step of a client that needs a free slot: Wait or GiveUp. After a wait, LeaveQueue extends the time
// slot by the time waited.
func (s *Search) queue(set *balance.Set, now time.Time, limit time.Duration) Step {
	if !s.Queued() && s.waiter.Waits() {
		s.queuedAt, s.limitAfterQueue = now, limit
	}
	left := set.QueueTimeout() - s.waitedInQueue - now.Sub(s.queuedAt)
	switch {
	case !s.waiter.Waits():
		s.final = queueFull
	case left <= 0:
		s.final = queueTimeout
	case s.waiter.Front():
		return Step{Do: Wait, For: min(left, lookAgain), Woken: s.waiter.Woken()}
	default:
		return Step{Do: Wait, For: left, Woken: s.waiter.Woken(), Behind: true}
	}
	s.LeaveQueue(now)
	return Step{Do: GiveUp, Result: s.final}
}

// Queued reports whether the client waits for a free slot.
func (s *Search) Queued() bool { return !s.queuedAt.IsZero() }

// TimeInQueue returns the total duration of the client's ended waits for a free slot.
func (s *Search) TimeInQueue() time.Duration { return s.waitedInQueue }

// LeaveQueue ends the client's wait for a free slot, if it waits. It is called when the client has an endpoint or
// leaves, when the search gives up, and when no untried endpoint is left.
func (s *Search) LeaveQueue(now time.Time) {
	if !s.Queued() {
		return
	}
	s.waiter.Leave()
	d := now.Sub(s.queuedAt)
	s.queuedAt, s.waitedInQueue = time.Time{}, s.waitedInQueue+d
	if !s.slotEnd.IsZero() {
		s.slotEnd = s.slotEnd.Add(d)
	}
	s.Record.Delayed(conn.Queued, now, d)
}

// Preview returns the endpoints of set in the order in which a search that begins now would try them, if all attempts
// failed. vip is the VIP to which the client connected; had is the client's affinity, or nil. Preview changes nothing:
// it takes no turn in rotation, and begins no test of an endpoint after its quarantine. The order ends where the client
// would have to wait for a free slot. Preview ignores clients that are in the queue already.
func Preview(set *balance.Set, client, vip netip.Addr, had *affinity.Entry, now time.Time) (order []balance.Choice) {
	ask := balance.Request{Now: now, Client: client, VIP: vip}
	take := func(c balance.Choice) {
		order = append(order, c)
		ask.Tried = append(ask.Tried, c.Endpoint.Addr)
	}
	if had != nil {
		switch c, ok := set.Again(had.Endpoint, ask); {
		case c.Full():
			return nil
		case ok:
			take(c)
		}
	}
	for turn := uint32(0); len(order) < maxAttempts; {
		c, next, ok := set.Peek(turn, ask)
		if !ok {
			break
		}
		turn = next
		take(c)
	}
	return order
}
