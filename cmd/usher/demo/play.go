package demo

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/charmbracelet/x/ansi"
	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

const (
	lookEvery      = 200 * time.Millisecond // while something is expected
	width          = 80                     // of the output, in columns
	maxAsking      = 500                    // requests of a play that have no answer yet
	requestTimeout = 5 * time.Second        // of each request
)

// player plays a scenario.
type player struct {
	usher   *client.Client
	out     io.Writer
	started time.Time
	clients map[string]*clients          // by Service
	before  map[string]api.ServiceDetail // as it was at the beginning
	asking  chan struct{}                // has an element for each request on its way
	waiting sync.WaitGroup               // for open requests
}

// clients are the clients of one Service.
type clients struct {
	target
	answered, unanswered, late atomic.Int64
	stop                       context.CancelFunc
}

// Play plays s with the demo of c, and prints its steps and observations. It returns
// the number of unmet expectations. The load comes from this process and ends with it;
// broken servers stay broken.
func (s *Scenario) Play(ctx context.Context, c *client.Client, out io.Writer) (unmet int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	p := &player{usher: c, out: out, clients: map[string]*clients{}, before: map[string]api.ServiceDetail{}, asking: make(chan struct{}, maxAsking)}
	defer p.waiting.Wait()
	defer cancel()
	for _, st := range s.steps {
		if err := p.prepare(ctx, st); err != nil {
			return 0, err
		}
	}
	fmt.Fprintf(out, "%s\n\n", wrap(s.title, width))
	p.started = time.Now()
	expected := 0
	for _, st := range s.steps {
		if !sleep(ctx, time.Until(p.started.Add(st.at))) {
			return unmet, ctx.Err()
		}
		p.print(st.Say)
		met, err := p.do(ctx, st)
		if err != nil {
			return unmet, err
		}
		if st.Expect != "" {
			expected++
		}
		if !met {
			unmet++
		}
	}
	for name, cs := range p.clients {
		if n := cs.late.Load(); n > 0 {
			p.print(fmt.Sprintf("Skipped %d requests to %s, because %d requests were waiting for answers.", n, name, maxAsking))
		}
	}
	fmt.Fprintf(out, "\n%d of %d expectations met.\n", expected-unmet, expected)
	return unmet, nil
}

// prepare finds the Service to which a step sends requests, and records the state to which its expectation is compared.
func (p *player) prepare(ctx context.Context, st step) error {
	if st.Load != "" && p.clients[st.load.service] == nil {
		t, err := targetAt(ctx, p.usher, st.load.service)
		if err != nil {
			return err
		}
		p.clients[st.load.service] = &clients{target: t, stop: func() {}}
	}
	if _, known := p.before[st.expect.service]; st.Expect != "" && !known {
		s, err := p.usher.Service(ctx, corev1.NamespaceDefault, st.expect.service)
		if err != nil {
			return err
		}
		p.before[st.expect.service] = s
	}
	return nil
}

// do executes a step, and reports whether its expectation is met.
func (p *player) do(ctx context.Context, st step) (met bool, err error) {
	switch {
	case st.Load != "":
		p.print("load: " + st.Load)
		p.load(ctx, p.clients[st.load.service], st.load.rate)
	case st.Break != "":
		e, err := p.usher.Break(ctx, st.breaks)
		if err != nil {
			return false, err
		}
		p.print("break: " + e.Pod + " now " + e.Does)
	case st.Repair != "":
		what := api.DemoRepair{Endpoint: st.Repair}
		if st.Repair == "all" {
			what = api.DemoRepair{All: true}
		}
		if _, err := p.usher.Repair(ctx, what); err != nil {
			return false, err
		}
		p.print("repair: " + st.Repair)
	case st.Expect != "":
		return p.expect(ctx, st)
	}
	return true, nil
}

// expect checks until the expectation is met or its time is over, and reports whether it is met.
func (p *player) expect(ctx context.Context, st step) (bool, error) {
	for {
		saw, met, err := p.look(ctx, st.expect)
		switch {
		case err != nil:
			return false, err
		case met:
			p.print(fmt.Sprintf("as expected: %s (%s)", st.Expect, saw))
			return true, nil
		case time.Since(p.started) >= st.by:
			p.print(fmt.Sprintf("NOT AS EXPECTED: %s (%s)", st.Expect, saw))
			return false, nil
		}
		if !sleep(ctx, lookEvery) {
			return false, ctx.Err()
		}
	}
}

// look returns the current value, and whether it is as expected.
func (p *player) look(ctx context.Context, e expectation) (saw string, met bool, err error) {
	var n int64
	if cs := p.clients[e.service]; e.what == "answered" || e.what == "unanswered" {
		switch {
		case cs == nil: // no requests were sent
		case e.what == "answered":
			n = cs.answered.Load()
		default:
			n = cs.unanswered.Load()
		}
		return fmt.Sprint(n), e.holds(n), nil
	}
	s, err := p.usher.Service(ctx, corev1.NamespaceDefault, e.service)
	if err != nil {
		return "", false, err
	}
	before := p.before[e.service]
	state := string(s.State)
	if e.server == "" {
		if count := serviceCounts[e.what]; count != nil {
			n = since(e.what, count(before.Service), count(s.Service))
		}
	} else {
		was, is := serverOf(before, e.server), serverOf(s, e.server)
		state = string(is.State)
		if count := serverCounts[e.what]; count != nil {
			n = since(e.what, count(was), count(is))
		}
	}
	if e.what == "state" {
		return state, state == e.state, nil
	}
	return fmt.Sprint(n), e.holds(n), nil
}

// since returns a count since the beginning of the play. For open and ready, it returns the current value.
func since(what string, before, now int64) int64 {
	if what == "open" || what == "ready" {
		return now
	}
	return now - before
}

func serverOf(s api.ServiceDetail, name string) api.Endpoint {
	for _, port := range s.Details {
		for _, e := range port.Endpoints {
			if e.Pod == corev1.NamespaceDefault+"/"+name {
				return e
			}
		}
	}
	return api.Endpoint{}
}

// load sends rate requests a second to a Service from now on, instead of the previous rate. 0 sends none.
func (p *player) load(ctx context.Context, cs *clients, rate int) {
	cs.stop()
	if rate == 0 {
		return
	}
	// Requests already sent still get their answers after the load has stopped.
	asking, stop := context.WithCancel(ctx)
	cs.stop = stop
	p.waiting.Go(func() {
		ticker := time.NewTicker(time.Second / time.Duration(rate))
		defer ticker.Stop()
		for {
			select {
			case <-asking.Done():
				return
			case <-ticker.C:
			}
			select {
			case p.asking <- struct{}{}:
				p.waiting.Go(func() {
					p.ask(ctx, cs)
					<-p.asking
				})
			default:
				cs.late.Add(1)
			}
		}
	})
}

func (p *player) ask(ctx context.Context, cs *clients) {
	patient, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if _, err := cs.ask(patient); err == nil {
		cs.answered.Add(1)
	} else if ctx.Err() == nil {
		cs.unanswered.Add(1)
	}
}

// print prints the time since the beginning and a text.
func (p *player) print(text string) {
	const indent = 8
	if text == "" {
		return
	}
	lines := strings.ReplaceAll(wrap(strings.Join(strings.Fields(text), " "), width-indent), "\n", "\n"+strings.Repeat(" ", indent))
	fmt.Fprintf(p.out, "%*.1fs %s\n", indent-2, time.Since(p.started).Seconds(), lines)
}

// wrap breaks text into lines of at most width columns, between words. Wordwrap also breaks at hyphens, for example in
// the name of a flag, but not at non-breaking ones.
func wrap(text string, width int) string {
	const unbreakable = "\u2011"
	return strings.ReplaceAll(ansi.Wordwrap(strings.ReplaceAll(text, "-", unbreakable), width, ""), unbreakable, "-")
}

// sleep waits for d, and reports whether ctx is still active.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
