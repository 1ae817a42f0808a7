package balance

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
)

var writeHealth = flag.Bool("write-health", false, "write testdata/health.txt instead of comparing with it")

// subject is an endpoint whose health a test changes. Times are in seconds since the start of the test.
type subject struct {
	*Endpoint
	news []string // since the last call of look
}

var (
	epoch     = time.Unix(1_000_000, 0)
	clientOne = netip.MustParseAddr("10.1.0.1")
	clientTwo = netip.MustParseAddr("10.1.0.2")

	rechecked = Policy{First: time.Second, Max: 8 * time.Second, UntilProbe: true}
	plain     = Policy{First: time.Second, Max: 8 * time.Second}
)

const (
	checkInterval = 10 * time.Second
	rise, fall    = 2, 2
)

func seconds(s float64) time.Time { return epoch.Add(time.Duration(s * float64(time.Second))) }

// since prints a time in seconds since now.
func since(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return fmt.Sprintf("%+g s", t.Sub(now).Seconds())
}

// HealthChanged implements Watcher.
func (s *subject) HealthChanged(_ *Endpoint, h Health, now time.Time) {
	by := map[Kind]string{RecheckPassed: " by a recheck", CheckPassed: " by checks", CheckOff: " by the end of checks"}[h.By]
	switch {
	case h.State != Down:
		s.news = append(s.news, "UP"+by)
	case h.By == RecheckFailed:
		s.news = append(s.news, fmt.Sprintf("STILL DOWN for %v by %v", h.Until.Sub(now), h.Err))
	default:
		s.news = append(s.news, fmt.Sprintf("DOWN for %v by %v", h.Until.Sub(now), h.Err))
	}
}

func newSubject() *subject {
	list := []config.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Ready: true}}
	s := new(subject)
	pool := &Pool{Watcher: s}
	pool.Update(config.ServicePort{Endpoints: list, Cluster: list}, epoch)
	s.Endpoint = pool.All[0]
	return s
}

// reports lists all reports that change an endpoint's health. Each make returns a description of the result.
var reports = []struct {
	name string
	make func(s *subject, now time.Time) string
}{
	{"connected", func(s *subject, now time.Time) string { s.Report(Report{Kind: Connected, Now: now}, plain); return "" }},
	{"failed, rechecks", func(s *subject, now time.Time) string { return s.fail(now, now, netip.Addr{}, rechecked) }},
	{"failed, no rechecks", func(s *subject, now time.Time) string { return s.fail(now, now, netip.Addr{}, plain) }},
	{"failed, begun 2 s ago", func(s *subject, now time.Time) string {
		return s.fail(now.Add(-2*time.Second), now, netip.Addr{}, plain)
	}},
	{"failed, quarantine off", func(s *subject, now time.Time) string { return s.fail(now, now, netip.Addr{}, Policy{}) }},
	{"failed, first client", func(s *subject, now time.Time) string { return s.fail(now, now, clientOne, rechecked) }},
	{"failed, first client, begun 1 s ago", func(s *subject, now time.Time) string {
		return s.fail(now.Add(-time.Second), now, clientOne, rechecked)
	}},
	{"failed, second client", func(s *subject, now time.Time) string { return s.fail(now, now, clientTwo, rechecked) }},
	{"failed, first client, off", func(s *subject, now time.Time) string { return s.fail(now, now, clientOne, Policy{}) }},
	{"recheck passed", func(s *subject, now time.Time) string { return s.recheck(RecheckPassed, now, nil) }},
	{"recheck failed", func(s *subject, now time.Time) string { return s.recheck(RecheckFailed, now, errors.New("no answer")) }},
	{"recheck not made", func(s *subject, now time.Time) string {
		return s.recheck(RecheckInconclusive, now, errors.New("no descriptor"))
	}},
	{"check passed", func(s *subject, now time.Time) string { return s.check(CheckPassed, now, nil) }},
	{"check failed", func(s *subject, now time.Time) string { return s.check(CheckFailed, now, errors.New("status 503")) }},
	{"checks off", func(s *subject, now time.Time) string { return s.check(CheckOff, now, nil) }},
}

// fail reports a failed attempt. If client is valid, the attempt was made from the client's address.
func (s *subject) fail(began, now time.Time, client netip.Addr, p Policy) string {
	if s.Report(Report{Kind: ConnectFailed, Start: began, Now: now, Err: errors.New("refused"), Client: client}, p).Blamed {
		return "blamed"
	}
	return "not blamed"
}

func (s *subject) recheck(kind Kind, now time.Time, err error) string {
	if next := s.Report(Report{Kind: kind, Now: now, Err: err}, rechecked).Next; next > 0 {
		return fmt.Sprintf("next recheck in %v", next)
	}
	return "no further recheck"
}

func (s *subject) check(kind Kind, now time.Time, err error) string {
	s.Report(Report{Kind: kind, Now: now, Err: err}, Policy{First: checkInterval, Rise: rise, Fall: fall})
	return ""
}

func (s *subject) report(name string, at float64) string {
	for _, r := range reports {
		if r.name == name {
			return r.make(s, seconds(at))
		}
	}
	panic(name)
}

// claim chooses the endpoint for a connection.
func (s *subject) claim(at float64) { s.available(seconds(at), true) }

// look describes the endpoint's health at now: for users, for session affinity, and for choices from then on.
func (s *subject) look(now time.Time) string {
	out := "up"
	if h := s.Health(now); h.State == Down {
		out = fmt.Sprintf("down until %s, failures %d, %v", since(h.Until, now), h.Failures, h.Err)
		if h.UntilProbe {
			out += ", rechecked"
		}
	}
	if _, kept := s.pool.Cluster.Again(s.Addr, Request{Now: now}); !kept {
		out += "; no affinity"
	}
	out += "; choices "
	for _, after := range []float64{0, 0.3, 0.6, 1, 2, 4, 7, 8, 20} {
		out += map[Availability]string{Up: "U", HalfOpen: "H", Down: "D"}[s.available(now.Add(time.Duration(after*float64(time.Second))), false)]
	}
	return out
}

// states lists all health states. In each, now is the present, in seconds.
var states = []struct {
	name  string
	now   float64
	steps func(s *subject)
}{
	{"up", 0, func(*subject) {}},
	{"down, rechecked", 0.5, func(s *subject) { s.report("failed, rechecks", 0) }},
	{"down, recheck due", 1, func(s *subject) { s.report("failed, rechecks", 0) }},
	{"down, two rechecks failed", 4, func(s *subject) {
		s.report("failed, rechecks", 0)
		s.report("recheck failed", 1)
		s.report("recheck failed", 3)
	}},
	{"down, rechecks at their longest", 40, func(s *subject) {
		s.report("failed, rechecks", 0)
		for _, at := range []float64{1, 3, 7, 15, 23, 31, 39} {
			s.report("recheck failed", at)
		}
	}},
	{"recovered just now", 1.5, func(s *subject) { s.report("failed, rechecks", 0); s.report("recheck passed", 1) }},
	{"recovered before an attempt of 2 s ends", 2.5, func(s *subject) { s.report("failed, rechecks", 0); s.report("recheck passed", 1) }},
	{"recovered long ago", 9, func(s *subject) { s.report("failed, rechecks", 0); s.report("recheck passed", 1) }},
	{"down without rechecks", 0.5, func(s *subject) { s.report("failed, no rechecks", 0) }},
	{"half-open", 1, func(s *subject) { s.report("failed, no rechecks", 0) }},
	{"half-open, claimed", 1.4, func(s *subject) { s.report("failed, no rechecks", 0); s.claim(1) }},
	{"half-open, claim over", 2, func(s *subject) { s.report("failed, no rechecks", 0); s.claim(1) }},
	{"half-open, claimed twice", 2.5, func(s *subject) { s.report("failed, no rechecks", 0); s.claim(1); s.claim(2) }},
	{"no news for the longest quarantine", 9, func(s *subject) { s.report("failed, no rechecks", 0); s.claim(1); s.claim(8.9) }},
	{"down for longest", 24, func(s *subject) {
		for _, at := range []float64{0, 1, 3, 7, 15, 23} {
			s.report("failed, no rechecks", at)
		}
	}},
	{"one client's failure", 0.5, func(s *subject) { s.report("failed, first client", 0) }},
	{"one client's failure, over", 1.5, func(s *subject) { s.report("failed, first client", 0) }},
	{"one client's failure, over and claimed", 1.5, func(s *subject) { s.report("failed, first client", 0); s.claim(1) }},
	{"two clients' failures", 1.5, func(s *subject) { s.report("failed, first client", 0); s.report("failed, second client", 1) }},
	{"a check failed", 1, func(s *subject) { s.report("check failed", 0) }},
	{"down by checks", 5, func(s *subject) { s.report("check failed", 0); s.report("check failed", 1) }},
	{"down by checks, one passed", 5, func(s *subject) {
		s.report("check failed", 0)
		s.report("check failed", 1)
		s.report("check passed", 2)
	}},
	{"a check failed, and down", 0.5, func(s *subject) { s.report("check failed", 0); s.report("failed, rechecks", 0) }},
	{"a check failed, and half-open", 1, func(s *subject) { s.report("check failed", 0); s.report("failed, no rechecks", 0) }},
	{"down, and by checks", 1.5, func(s *subject) {
		s.report("failed, rechecks", 0)
		s.report("check failed", 0)
		s.report("check failed", 1)
	}},
	{"down, and by checks, one passed", 1.5, func(s *subject) {
		s.report("failed, rechecks", 0)
		s.report("check failed", 0)
		s.report("check failed", 0.2)
		s.report("check passed", 1)
	}},
	{"down by checks, and recovered", 1.5, func(s *subject) {
		s.report("failed, rechecks", 0)
		s.report("check failed", 0)
		s.report("check failed", 0.2)
		s.report("recheck passed", 1)
	}},
	{"down by checks, and half-open", 1.5, func(s *subject) {
		s.report("failed, no rechecks", 0)
		s.report("check failed", 0)
		s.report("check failed", 0.2)
	}},
	{"down by checks, one passed, and half-open", 1.5, func(s *subject) {
		s.report("failed, no rechecks", 0)
		s.report("check failed", 0)
		s.report("check failed", 0.2)
		s.report("check passed", 1)
	}},
	{"down by checks, and one client's failure", 1.5, func(s *subject) {
		s.report("check failed", 0)
		s.report("check failed", 0.2)
		s.report("failed, first client", 1)
	}},
}

// The test applies each report to each state. A later failure shows the effect of the remembered state.
func TestHealthOfAnEndpointInEachStateAfterEachReport(t *testing.T) {
	g := NewWithT(t)
	var out strings.Builder
	for _, state := range states {
		build := func() *subject {
			s := newSubject()
			state.steps(s)
			s.news = nil
			return s
		}
		before := build().look(seconds(state.now))
		fmt.Fprintf(&out, "# %s\n%s\n", state.name, before)
		for _, r := range reports {
			s := build()
			failed, connected := s.Failed.Load(), s.Connected.Load()
			row := []string{r.name + ":"}
			if result := r.make(s, seconds(state.now)); result != "" {
				row = append(row, result)
			}
			row = append(row, s.news...)
			after := s.look(seconds(state.now))
			if after == before {
				after = "as before"
			}
			g.Expect(s.Connected.Load()-connected).To(BeEquivalentTo(strings.Count(r.name, "connected")), "%s, %s", state.name, r.name)
			g.Expect(s.Failed.Load()-failed).To(BeEquivalentTo(strings.Count(r.name, "failed, ")), "%s, %s", state.name, r.name)
			fmt.Fprintf(&out, "%s | %s", strings.Join(row, " "), after)
			for _, later := range []string{"failed, no rechecks", "check failed"} {
				s := build()
				r.make(s, seconds(state.now))
				s.news = nil
				s.report(later, state.now+7.5)
				fmt.Fprintf(&out, " | later %s: %s", later, append(s.news, "-")[0])
			}
			fmt.Fprintln(&out)
		}
		fmt.Fprintln(&out)
	}
	const file = "testdata/health.txt"
	if *writeHealth {
		g.Expect(os.WriteFile(file, []byte(out.String()), 0o644)).To(Succeed())
	}
	want, err := os.ReadFile(file)
	g.Expect(err).NotTo(HaveOccurred())
	state, lines := "", strings.Split(string(want), "\n")
	for i, line := range strings.Split(out.String(), "\n") {
		if strings.HasPrefix(line, "#") {
			state = line
		}
		g.Expect(i).To(BeNumerically("<", len(lines)), "there are more lines than in "+file)
		g.Expect(line).To(Equal(lines[i]), "%s:%d, %s", file, i+1, state)
	}
	g.Expect(out.String()).To(Equal(string(want)))
}
