package balance

import (
	"fmt"
	"time"
)

// trial is what is known of an endpoint whose probes failed: those that its Service asks for,
// whether it is well or not.
type trial struct {
	failures  int       // since it was last well; before it is convicted, in a row
	successes int       // in a row, since it is convicted
	convicted bool      // in quarantine
	next      time.Time // probe
	cause     error     // of the last failure
}

// Judge reports that a probe that the Service asks for ended at now, with err or, if that is nil,
// well; the next one is due after interval. After fall failures in a row the endpoint is in
// quarantine, whoever has been connected to it, until rise successes in a row. Judge returns
// whether it is in quarantine now and was not before, or the other way round.
func (s *State) Judge(now time.Time, err error, interval time.Duration, rise, fall int) (news bool) {
	if err == nil && !s.tried() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.rarely()
	if r.trial == nil {
		r.trial = new(trial)
		r.tried.Store(true)
	}
	before := s.quarantined(now)
	t := r.trial
	t.next = now.Add(interval)
	if err == nil {
		t.successes++
		if !t.convicted || t.successes >= rise {
			s.acquit()
		}
	} else {
		t.failures, t.successes, t.cause = t.failures+1, 0, err
		t.convicted = t.convicted || t.failures >= fall
		s.remember()
	}
	return s.quarantined(now) != before
}

// Acquit says that the Service asks for no probes of the endpoint any more: what they have shown
// is forgotten. It returns whether that ends a quarantine.
func (s *State) Acquit(now time.Time) (news bool) {
	if !s.tried() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.quarantined(now)
	s.acquit()
	return s.quarantined(now) != before
}

// acquit forgets the trial. It is called with mu.
func (s *State) acquit() {
	if r := s.rare.Load(); r != nil {
		r.trial = nil
		r.tried.Store(false)
	}
	s.remember()
}

// remember notes whether there is something that makes the endpoint not healthy. It is called with
// mu.
func (s *State) remember() { s.remembers.Store(s.failed != nil || s.convicted()) }

func (s *State) convicted() bool {
	r := s.rare.Load()
	return r != nil && r.trial != nil && r.trial.convicted
}

// tried reports whether there is a trial. It takes no lock.
func (s *State) tried() bool {
	r := s.rare.Load()
	return r != nil && r.tried.Load()
}

// quarantined reports whether the endpoint is in quarantine at a time. It is called with mu.
func (s *State) quarantined(at time.Time) bool {
	return s.convicted() || s.failed != nil && s.failed.quarantined(at)
}

// period returns the quarantine of one who is convicted.
func (t *trial) period() Period {
	probes := "probes"
	if t.failures == 1 {
		probes = "probe"
	}
	return Period{Until: t.next, Probed: true, Convicted: true, Failures: t.failures,
		Cause: fmt.Errorf("%d %s failed: %w", t.failures, probes, t.cause)}
}
