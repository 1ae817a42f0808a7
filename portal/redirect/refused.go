package redirect

import (
	"errors"
	"time"

	"github.com/usherproxy/usher/portal"
)

// Refused rules are retried after RetryFirst, and then at intervals that double up to retryLast: a missing module may
// have been loaded.
const (
	RetryFirst = 10 * time.Second
	retryLast  = 5 * time.Minute
)

// refusals are the rules of a family that the kernel refused.
type refusals struct {
	byTarget map[portal.Target]refusal
	at       time.Time // when to try again
	wait     time.Duration
	now      func() time.Time
}

type refusal struct {
	rule portal.Rule
	err  error
}

func newRefusals(now func() time.Time) *refusals {
	return &refusals{byTarget: map[portal.Target]refusal{}, wait: RetryFirst, now: now}
}

// has reports whether exactly this rule is refused.
func (r *refusals) has(rule portal.Rule) bool { return r.byTarget[rule.Target].rule == rule }

// add records the rules among suspects for which bad has an error.
func (r *refusals) add(suspects []portal.Rule, bad map[portal.Target]error) {
	r.schedule()
	for _, s := range suspects {
		if err := bad[s.Target]; err != nil {
			r.byTarget[s.Target] = refusal{s, err}
		}
	}
}

// schedule sets when to try again, unless that is set already.
func (r *refusals) schedule() {
	now := r.now()
	if len(r.byTarget) > 0 || now.Before(r.at) {
		return
	}
	if now.Sub(r.at) > retryLast { // the rules that were retried at r.at were accepted
		r.wait = RetryFirst
	}
	r.at = now.Add(r.wait)
	r.wait = min(2*r.wait, retryLast)
}

// addSCTP records the SCTP rules that redirect to a listener as refused: without a redirect address they cannot work.
func (r *refusals) addSCTP(rules map[portal.Target]portal.Rule, noRedirectAddr string) {
	why := errors.New("cannot redirect SCTP to a listener: " + noRedirectAddr)
	for t, s := range rules {
		if t.Protocol == portal.SCTP && s.LocalPort != 0 && !r.has(s) {
			r.schedule()
			r.byTarget[t] = refusal{s, why}
		}
	}
}

// keep forgets refused rules that are no longer in rules.
func (r *refusals) keep(rules map[portal.Target]portal.Rule) {
	for t, refused := range r.byTarget {
		if rules[t] != refused.rule {
			delete(r.byTarget, t)
		}
	}
}

// retry reports whether it is time to try again, and if so forgets all refused rules.
func (r *refusals) retry() bool {
	if len(r.byTarget) == 0 || r.now().Before(r.at) {
		return false
	}
	clear(r.byTarget)
	return true
}

// undecided wraps an error that says nothing about the tried rules.
type undecided struct{ error }

func (e undecided) Unwrap() error { return e.error }

// MarkUndecided returns err as one that says nothing about the tried rules: another program held a lock, or the process
// lacked a resource.
func MarkUndecided(err error) error { return undecided{err} }

// IsUndecided reports whether err was marked by MarkUndecided.
func IsUndecided(err error) bool { return errors.As(err, new(undecided)) }

// ErrTooMany means that the rules do not fit into one transaction: try fewer.
var ErrTooMany = errors.New("too many rules to try together")

// bisect finds the rules that make try fail, alone or together with others. It calls try about 2·n·log2(len(rules)/n)
// times for n such rules. If try fails for some rules, but for neither half of them, bisect returns all of these. On
// the first undecided error of try, or ErrTooMany for one rule, it stops, and returns only that error.
func bisect(rules []portal.Rule, try func([]portal.Rule) error) (bad map[portal.Target]error, failed error) {
	bad = map[portal.Target]error{}
	var search func([]portal.Rule) bool
	search = func(part []portal.Rule) (refused bool) {
		if len(part) == 0 || failed != nil {
			return false
		}
		err := try(part)
		tooMany := err == ErrTooMany
		switch {
		case IsUndecided(err), tooMany && len(part) == 1:
			failed = err
			return false
		case err == nil:
			return false
		case len(part) == 1:
			bad[part[0].Target] = err
			return true
		}
		half := len(part) / 2
		left, right := search(part[:half]), search(part[half:])
		if !left && !right && !tooMany && failed == nil {
			for _, r := range part {
				bad[r.Target] = err
			}
		}
		return left || right || !tooMany
	}
	search(rules)
	if failed != nil {
		return nil, failed
	}
	return bad, nil
}
