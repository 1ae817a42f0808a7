package proxy

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/usherproxy/usher/affinity"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/trace"
)

// DefaultSchedule is the one that kube-proxy's userspace mode had.
var DefaultSchedule = []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}

// maxAttempts bounds what one connection may try, so that a Service whose many
// endpoints all refuse at once costs little.
const maxAttempts = 32

// Why no endpoint was found.
var (
	errNoEndpoint = errors.New("the Service has no usable endpoint")
	errAllFailed  = errors.New("every attempt failed")
)

// What most attempts that fail end with.
var (
	errRefused  = errors.New("connection refused")
	errNoAnswer = errors.New("no answer") // in the time it had
)

// A dialer connects to an endpoint, from the local address given or, if that is
// the zero Addr, from one that the kernel picks. It returns when ctx ends.
type dialer func(ctx context.Context, from netip.Addr, to *config.Endpoint) (endpointConn, error)

// attempts is one connection's search for an endpoint that answers.
//
// Time is divided into the slots of the schedule, and an attempt may take as
// long as its slot. One that fails sooner leaves the rest of the slot to the
// next endpoint. When all were tried, the rest of the slot is waited before
// they are asked again, since a Pod that is restarting is often back soon; that
// goes for the last slot too.
type attempts struct {
	schedule   []time.Duration
	quarantine balance.Quarantine
	dial       dialer
	from       netip.Addr

	// endpoints returns those that this connection may use now, and a channel
	// that is closed when they are replaced by others.
	endpoints func() (*balance.Set, <-chan struct{})

	affinity *affinity.Table
	client   netip.Addr

	// report is told each step. It fills in what all events of the connection
	// have in common.
	report func(trace.Event)

	tried []netip.AddrPort // since all were tried
	count int              // attempts so far
	began time.Time        // the first one
}

// run returns a connection to an endpoint, or says why there is none:
// errNoEndpoint, errAllFailed, ctx's error, a system error for which
// outOfResources is true, or one that is futile.
func (a *attempts) run(ctx context.Context) (endpointConn, *balance.Endpoint, error) {
	waited := false
	began := a.began
	if began.IsZero() {
		began = time.Now()
	}
	for _, slot := range a.schedule {
		end := began.Add(slot)
		for time.Now().Before(end) {
			set, changed := a.endpoints()
			waited = set.Len() > 0 && set.Untried(a.tried) == 0
			if waited {
				if a.wait(ctx, time.Until(end), changed); ctx.Err() != nil {
					return nil, nil, ctx.Err()
				}
				continue
			}
			if conn, endpoint, err := a.next(ctx, set, slot); !errors.Is(err, errTryAgain) {
				return conn, endpoint, err
			}
		}
		if set, _ := a.endpoints(); set.Untried(a.tried) == 0 {
			a.tried = a.tried[:0]
		}
		began = time.Now()
	}
	if waited {
		set, _ := a.endpoints()
		if conn, endpoint, err := a.next(ctx, set, a.schedule[0]); !errors.Is(err, errTryAgain) {
			return conn, endpoint, err
		}
	}
	return nil, nil, errAllFailed
}

// errTryAgain is what next returns when an endpoint failed and the next one may
// be tried.
var errTryAgain = errors.New("this endpoint failed")

// next makes one attempt to the endpoint that is to be tried next.
func (a *attempts) next(ctx context.Context, set *balance.Set, timeout time.Duration) (endpointConn, *balance.Endpoint, error) {
	t, err := a.begin(set, time.Now())
	if err != nil {
		return nil, nil, err
	}
	conn, err := a.connect(ctx, t.Endpoint.Endpoint, timeout)
	if err := a.settle(ctx, t, err); err != nil {
		return nil, nil, err
	}
	return conn, t.Endpoint, nil
}

// settle ends an attempt that ended with err, and says what that means: nil if it
// succeeded, errTryAgain if it failed, or else why no other attempt is worth it:
// ctx's error if that has ended.
func (a *attempts) settle(ctx context.Context, t try, err error) error {
	failed := err != nil && ctx.Err() == nil && !outOfResources(err) && !futile(err) // else it is not about the endpoint
	blame := failed && blamed(err)
	if err != nil {
		err = attemptError(err)
	}
	a.end(t, time.Now(), err, blame)
	switch {
	case failed:
		return errTryAgain
	case err != nil && ctx.Err() != nil:
		return ctx.Err() // whatever became of the attempt
	}
	return err
}

// blamed reports whether err, with which an attempt ended, is the endpoint's fault. It is
// not if this node has run out of something, the ports towards this endpoint among that,
// or has no address of its family: another endpoint may do.
func blamed(err error) bool { return !outOfResources(err) && !errors.Is(err, syscall.EADDRNOTAVAIL) }

// try is an attempt that has begun.
type try struct {
	balance.Choice
	started time.Time
}

// begin chooses the endpoint to try next. The error is errNoEndpoint or
// errAllFailed.
func (a *attempts) begin(set *balance.Set, now time.Time) (try, error) {
	if a.count == maxAttempts {
		return try{}, errAllFailed
	}
	choice, ok := a.choose(set, now)
	if !ok {
		return try{}, errNoEndpoint
	}
	if a.count++; a.count == 1 {
		a.began = now
	}
	a.tried = append(a.tried, choice.Endpoint.Addr)
	return try{choice, now}, nil
}

// end reports how an attempt ended. If it is the endpoint's fault, that goes
// into quarantine, and the client's affinity to it is forgotten.
func (a *attempts) end(t try, now time.Time, err error, blame bool) {
	step := trace.Event{Kind: trace.Attempt, Time: now, Attempt: a.count, Endpoint: t.Endpoint.Addr, Pod: t.Endpoint.Pod,
		Reason: string(t.Reason), PassedOver: t.PassedOver, Took: now.Sub(t.started)}
	if err != nil {
		step.Err = err.Error()
	}
	a.report(step)
	switch {
	case err == nil:
		t.Endpoint.Succeed()
	case blame:
		t.Endpoint.Fail(t.started, now, err, a.quarantine)
		a.affinity.Forget(a.client, t.Endpoint.Addr)
	}
}

// choose returns the endpoint that the client had, if there is affinity and the
// endpoint is as good as any, and otherwise the next in turn.
func (a *attempts) choose(set *balance.Set, now time.Time) (balance.Choice, bool) {
	if had, ok := a.affinity.Get(a.client, now); ok {
		if choice, ok := a.sticky(set, had, now); ok {
			a.affinity.Set(a.client, had, now)
			return choice, true
		}
		a.affinity.Forget(a.client, had)
	}
	choice, ok := set.Pick(now, a.tried)
	if !ok {
		return choice, false
	}
	if had := a.affinity.Claim(a.client, choice.Endpoint.Addr, now); had != choice.Endpoint.Addr {
		if sticky, ok := a.sticky(set, had, now); ok {
			return sticky, true
		}
	}
	return choice, true
}

// sticky returns the choice of the endpoint that the client had, unless it is
// not usable any more, has failed lately, or has been tried.
func (a *attempts) sticky(set *balance.Set, had netip.AddrPort, now time.Time) (balance.Choice, bool) {
	endpoint := set.Find(had)
	if endpoint == nil || slices.Contains(a.tried, had) {
		return balance.Choice{}, false
	}
	if _, quarantined := endpoint.Quarantined(now); quarantined {
		return balance.Choice{}, false
	}
	return balance.Choice{Endpoint: endpoint, Reason: balance.Affinity}, true
}

// connect dials and gives up after timeout.
func (a *attempts) connect(ctx context.Context, to *config.Endpoint, timeout time.Duration) (endpointConn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return a.dial(ctx, a.from, to)
}

// attemptError says in few words why an attempt failed.
func attemptError(err error) error {
	var errno syscall.Errno
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return errRefused
	case errors.As(err, &errno):
		return errno
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return errNoAnswer
	}
	return err
}

// wait returns after d, or sooner if the endpoints are replaced by others or
// ctx ends.
func (a *attempts) wait(ctx context.Context, d time.Duration, changed <-chan struct{}) {
	a.report(trace.Event{Kind: trace.Waiting, Time: time.Now(), Attempt: a.count, Took: d})
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-ctx.Done():
	}
}

// futile reports whether err says that no endpoint will do: see Options.Dial.
func futile(err error) bool {
	var f interface{ Futile() bool }
	return errors.As(err, &f) && f.Futile()
}

// outOfResources reports whether err says that this node, and not the endpoint,
// has run out of descriptors or memory (see connect(2), socket(2)).
func outOfResources(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EAGAIN,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
