package search

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/affinity"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/conn"
)

// behaviour is an endpoint's response to a dial at a time after the start.
type behaviour func(ctx context.Context, since time.Duration) error

func answers(context.Context, time.Duration) error { return nil }
func refuses(context.Context, time.Duration) error { return syscall.ECONNREFUSED }
func silent(ctx context.Context, _ time.Duration) error {
	<-ctx.Done()
	return ctx.Err()
}
func refusesFor(d time.Duration) behaviour {
	return func(_ context.Context, since time.Duration) error {
		if since < d {
			return syscall.ECONNREFUSED
		}
		return nil
	}
}
func slow(d time.Duration, err error) behaviour {
	return func(ctx context.Context, _ time.Duration) error {
		select {
		case <-time.After(d):
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

type forbidden struct{}

func (forbidden) Error() string { return "forbidden" }
func (forbidden) Futile() bool  { return true }

type listed struct {
	set      *balance.Set
	replaced chan struct{}
}

// client runs a search as a goroutine does. Endpoint n has the address 10.0.0.n:80.
type client struct {
	table      *affinity.Table
	quarantine balance.Policy
	schedule   []time.Duration
	scheduler  config.Scheduler
	pool       balance.Pool
	bound      int           // maximum number of connections to each endpoint
	patience   time.Duration // queue timeout of clients
	listed     atomic.Pointer[listed]
	behaviour  map[int]behaviour
	start      time.Time
	log        []string // reported attempts: "endpoint@ms:outcome"
}

func newClient(endpoints ...behaviour) *client {
	c := &client{
		table:      affinity.NewTable(&affinity.Limits{PerTable: 10, Total: 10}, 0),
		quarantine: balance.Policy{First: 10 * time.Second, Max: 2 * time.Minute},
		schedule:   DefaultSchedule,
		behaviour:  map[int]behaviour{},
		start:      time.Now(),
	}
	var ns []int
	for i, b := range endpoints {
		c.behaviour[i+1] = b
		ns = append(ns, i+1)
	}
	c.list(ns...)
	return c
}

// record returns a record that the client observes.
func (c *client) record() *conn.Record {
	return &conn.Record{Port: &conn.Port{Observers: []conn.Observer{c}}, Start: time.Now()}
}

// Observe implements conn.Observer.
func (c *client) Observe(r *conn.Record, s conn.Step) {
	ms := time.Since(c.start).Milliseconds()
	switch {
	case s.Kind == conn.Waiting:
		c.log = append(c.log, fmt.Sprintf("wait@%d", ms))
	case s.Kind == conn.Queued:
		c.log = append(c.log, fmt.Sprintf("queued@%d", ms))
	default:
		a := r.Attempt(s.Attempt)
		c.log = append(c.log, fmt.Sprintf("%d@%d:%s", number(a.Endpoint), ms, cmp.Or(a.Err, "ok")))
	}
}

func number(a netip.AddrPort) int { return int(a.Addr().As4()[3]) }

func endpointAddr(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), 80)
}

// list sets the endpoints to those with the given numbers.
func (c *client) list(ns ...int) {
	var list []config.Endpoint
	for _, n := range ns {
		list = append(list, config.Endpoint{Addr: endpointAddr(n), Ready: true})
	}
	c.pool.Update(config.ServicePort{Policy: config.Policy{Scheduler: c.scheduler, EndpointLimit: c.bound, QueueTimeout: c.patience}, Endpoints: list, Cluster: list}, time.Now())
	if old := c.listed.Swap(&listed{c.pool.Cluster, make(chan struct{})}); old != nil {
		close(old.replaced)
	}
}

// find runs a search and describes its result and steps.
func (c *client) find() string {
	c.log = nil
	e, err := c.search()
	if err != nil {
		return strings.Join(append(c.log, err.Error()), " ")
	}
	return strings.Join(append(c.log, fmt.Sprintf("found %d", number(e.Addr))), " ")
}

func (c *client) search() (*balance.Endpoint, error) {
	s := Search{Schedule: c.schedule, Policy: c.quarantine, Affinity: c.table, Client: netip.MustParseAddr("192.0.2.1"), Record: c.record()}
	for {
		l := c.listed.Load()
		step := s.Next(l.set, time.Now())
		switch step.Do {
		case GiveUp:
			return nil, step.Result.Err
		case Wait:
			replaced := l.replaced
			if step.Behind {
				replaced = nil
			}
			select {
			case <-time.After(step.For):
			case <-step.Woken:
			case <-replaced:
			}
			continue
		}
		ctx, cancel := context.Background(), func() {}
		if step.For > 0 {
			ctx, cancel = context.WithTimeout(ctx, step.For)
		}
		err := c.behaviour[number(step.Endpoint.Addr)](ctx, time.Since(c.start))
		cancel()
		if err == nil {
			s.Connected(time.Now())
			return step.Endpoint, nil
		}
		s.Failed(time.Now(), err)
		step.Endpoint.Release()
	}
}

func TestAttempts(t *testing.T) {
	for _, c := range []struct {
		name      string
		endpoints []behaviour
		want      string
	}{
		{"uses the first endpoint if it answers",
			[]behaviour{answers, answers}, "1@0:ok found 1"},
		{"immediately tries the next endpoint when refused",
			[]behaviour{refuses, answers}, "1@0:connection refused 2@0:ok found 2"},
		{"tries the next endpoint at the end of the slot if one does not answer",
			[]behaviour{silent, silent, answers}, "1@250:no answer 2@750:no answer 3@750:ok found 3"},
		{"gives the next endpoint the rest of the slot in addition to its own",
			[]behaviour{slow(200*time.Millisecond, syscall.ECONNREFUSED), slow(240*time.Millisecond, nil)},
			"1@200:connection refused 2@440:ok found 2"},
		{"tries all refusing endpoints and finds the one that answers",
			[]behaviour{refuses, refuses, refuses, refuses, refuses, answers},
			"1@0:connection refused 2@0:connection refused 3@0:connection refused 4@0:connection refused 5@0:connection refused 6@0:ok found 6"},
		{"retries the only endpoint at the end of each slot",
			[]behaviour{refuses},
			"1@0:connection refused wait@0 1@250:connection refused wait@250 1@750:connection refused wait@750 1@1750:connection refused wait@1750 1@3750:connection refused every attempt failed"},
		{"finds a Pod that returns after two seconds",
			[]behaviour{refusesFor(2 * time.Second)},
			"1@0:connection refused wait@0 1@250:connection refused wait@250 1@750:connection refused wait@750 1@1750:connection refused wait@1750 1@3750:ok found 1"},
		{"retries all endpoints after waiting",
			[]behaviour{refusesFor(600 * time.Millisecond), refuses},
			"1@0:connection refused 2@0:connection refused wait@0 1@250:connection refused 2@250:connection refused wait@250 1@750:ok found 1"},
		{"fails at the end of the schedule if endpoints do not answer",
			[]behaviour{silent},
			"1@250:no answer 1@750:no answer 1@1750:no answer 1@3750:no answer every attempt failed"},
		{"fails for a Service without endpoints",
			nil, "the Service has no usable endpoint"},
		{"does not continue when the node is out of descriptors",
			[]behaviour{func(context.Context, time.Duration) error { return syscall.EMFILE }, answers},
			"1@0:too many open files too many open files"},
		{"does not continue after an error that affects all endpoints",
			[]behaviour{func(context.Context, time.Duration) error { return forbidden{} }, answers},
			"1@0:forbidden forbidden"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				NewWithT(t).Expect(newClient(c.endpoints...).find()).To(Equal(c.want))
			})
		})
	}
}

func TestAttemptsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newClient(slices.Repeat([]behaviour{refuses}, 100)...)
		g.Expect(s.find()).To(HaveSuffix("32@0:connection refused every attempt failed"))
		g.Expect(s.log).To(HaveLen(maxAttempts))
	})
}

func TestAffinityAndRetriesWithEachScheduler(t *testing.T) {
	for _, name := range config.SchedulerNames() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				c := newClient(answers, answers, answers, answers)
				c.table = affinity.NewTable(&affinity.Limits{PerTable: 10, Total: 10}, time.Minute)
				g.Expect(c.scheduler.UnmarshalText([]byte(name))).To(Succeed())
				c.list(1, 2, 3, 4)
				order := Preview(c.listed.Load().set, netip.MustParseAddr("192.0.2.1"), netip.Addr{}, nil, time.Now())
				g.Expect(order).To(HaveLen(4))
				first := number(order[0].Endpoint.Addr)
				for range 5 {
					g.Expect(c.find()).To(Equal(fmt.Sprintf("%d@0:ok found %[1]d", first)), "the scheduler's first choice, and the same endpoint afterwards")
				}
				c.behaviour[first] = refuses
				second := c.find()
				g.Expect(second).To(MatchRegexp(`^%d@0:connection refused ([^%[1]d])@0:ok found`, first))
				for range 5 {
					g.Expect(c.find()).To(HaveSuffix(second[len(second)-1:]), "the client keeps the endpoint that is not in quarantine")
				}
			})
		})
	}
}

func TestQuarantinedEndpointsAreNotTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newClient(refuses, silent, answers)
		g.Expect(s.find()).To(Equal("1@0:connection refused 2@250:no answer 3@250:ok found 3"))
		for range 20 {
			g.Expect(s.find()).To(Equal("3@250:ok found 3"))
		}
	})
}

func TestResourceErrorsDoNotQuarantine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newClient(func(context.Context, time.Duration) error { return syscall.EMFILE })
		s.find()
		quarantined := s.pool.All[0].Health(time.Now()).State == balance.Down
		g.Expect(quarantined).To(BeFalse())
	})
}

func TestNewEndpointEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newClient(refuses)
		s.behaviour[2] = answers
		time.AfterFunc(100*time.Millisecond, func() { s.list(1, 2) })
		NewWithT(t).Expect(s.find()).To(Equal("1@0:connection refused wait@0 2@100:ok found 2"))
	})
}

func TestRemovingTheLastEndpointEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newClient(refuses)
		time.AfterFunc(100*time.Millisecond, func() { s.list() })
		NewWithT(t).Expect(s.find()).To(Equal("1@0:connection refused wait@0 the Service has no usable endpoint"))
	})
}

func TestAbandonedAttemptDoesNotQuarantine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		c := newClient(refuses, refuses)
		s := Search{Schedule: c.schedule, Policy: c.quarantine, Affinity: c.table, Record: c.record()}
		set := c.listed.Load().set
		first := s.Next(set, c.start).Endpoint
		s.Abandoned(c.start, context.Canceled)
		quarantined := first.Health(c.start).State == balance.Down
		g.Expect(quarantined).To(BeFalse())
		g.Expect(c.log).To(Equal([]string{"1@0:context canceled"}))
		g.Expect(s.Next(set, c.start).Endpoint).NotTo(Equal(first), "the search continues with another endpoint")
	})
}

func TestEachEndpointIsTriedOnceWithoutASchedule(t *testing.T) {
	for _, c := range []struct {
		name      string
		endpoints []behaviour
		want      string
	}{
		{"until one answers", []behaviour{refuses, answers, answers}, "1@0:connection refused 2@0:ok found 2"},
		{"and no more if all refuse", []behaviour{refuses, refuses}, "1@0:connection refused 2@0:connection refused every attempt failed"},
		{"if the Service has any", nil, "the Service has no usable endpoint"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newClient(c.endpoints...)
				client.schedule = nil
				NewWithT(t).Expect(client.find()).To(Equal(c.want))
			})
		})
	}
}

func TestEndpointsGetAnotherAttemptAfterALongOneWithoutASchedule(t *testing.T) {
	g := NewWithT(t)
	c := newClient(refuses, refuses)
	s := Search{Policy: c.quarantine, Record: c.record()}
	now, order := c.start, []int(nil)
	for _, lasted := range []time.Duration{time.Hour, time.Hour, 5 * time.Second, 3 * time.Second} {
		step := s.Next(c.pool.Cluster, now)
		g.Expect(step.Do).To(Equal(Dial))
		order = append(order, number(step.Endpoint.Addr))
		now = now.Add(lasted)
		s.Failed(now, syscall.ECONNREFUSED)
		step.Endpoint.Release()
	}
	g.Expect(order).To(Equal([]int{1, 2, 1, 2}))
	g.Expect(s.Next(c.pool.Cluster, now)).To(Equal(Step{Do: GiveUp, Result: allFailed}), "the last attempt was short")
}

func TestPreviewPredictsTheSearch(t *testing.T) {
	for name, prepare := range map[string]func(*client){
		"all endpoints are healthy": func(*client) {},
		"one endpoint is in quarantine": func(c *client) {
			c.pool.All[1].Report(balance.Report{Kind: balance.ConnectFailed, Start: c.start, Now: c.start, Err: syscall.ECONNREFUSED}, c.quarantine)
		},
		"the client has an affinity entry": func(c *client) {
			c.table.SetTimeout(time.Minute)
			c.table.Set(netip.MustParseAddr("192.0.2.1"), endpointAddr(3), c.start)
		},
		"the client's endpoint is in quarantine": func(c *client) {
			c.table.SetTimeout(time.Minute)
			c.table.Set(netip.MustParseAddr("192.0.2.1"), endpointAddr(1), c.start)
			c.pool.All[0].Report(balance.Report{Kind: balance.ConnectFailed, Start: c.start, Now: c.start, Err: syscall.ECONNREFUSED}, c.quarantine)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(refuses, refuses, refuses, refuses)
				c.schedule = nil
				prepare(c)
				var want []string
				for range 2 { // the second run changes nothing
					want = nil
					var had *affinity.Entry
					if e, ok := c.table.Peek(netip.MustParseAddr("192.0.2.1"), time.Now()); ok {
						had = &e
					}
					for _, choice := range Preview(c.listed.Load().set, netip.Addr{}, netip.Addr{}, had, time.Now()) {
						want = append(want, fmt.Sprintf("%d@0:connection refused", number(choice.Endpoint.Addr)))
					}
				}
				g := NewWithT(t)
				g.Expect(want).To(HaveLen(4))
				c.find()
				g.Expect(c.log).To(Equal(want))
			})
		})
	}
}

func TestAffinityOfAttempts(t *testing.T) {
	sticky := func(endpoints ...behaviour) *client {
		s := newClient(endpoints...)
		s.table.SetTimeout(time.Minute)
		return s
	}
	t.Run("stays with the endpoint", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := sticky(answers, answers, answers)
			for range 5 {
				NewWithT(t).Expect(s.find()).To(HaveSuffix("found 1"))
			}
		})
	})
	t.Run("moves to another endpoint after a failure, and stays there", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			s := sticky(answers, answers)
			g.Expect(s.find()).To(HaveSuffix("found 1"))
			s.behaviour[1] = refuses
			g.Expect(s.find()).To(Equal("1@0:connection refused 2@0:ok found 2"))
			s.behaviour[1] = answers
			time.Sleep(30 * time.Second)
			g.Expect(s.find()).To(HaveSuffix("found 2"))
		})
	})
	t.Run("skips an endpoint that failed for another client", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			s := sticky(answers, answers)
			g.Expect(s.find()).To(HaveSuffix("found 1"))
			s.pool.Cluster.Endpoints()[0].Report(balance.Report{Kind: balance.ConnectFailed, Start: time.Now(), Now: time.Now(), Err: syscall.ECONNREFUSED}, s.quarantine)
			g.Expect(s.find()).To(HaveSuffix("2@0:ok found 2"))
		})
	})
	t.Run("skips an endpoint that is no longer usable", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			s := sticky(answers, answers)
			g.Expect(s.find()).To(HaveSuffix("found 1"))
			s.list(2)
			g.Expect(s.find()).To(HaveSuffix("found 2"))
			s.list(1, 2)
			g.Expect(s.find()).To(HaveSuffix("found 2"))
		})
	})
	t.Run("ends at the timeout after the last new connection", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			s := sticky(answers, answers)
			g.Expect(s.find()).To(HaveSuffix("found 1"))
			time.Sleep(time.Minute - 1)
			g.Expect(s.find()).To(HaveSuffix("found 1"))
			time.Sleep(time.Minute)
			g.Expect(s.find()).To(HaveSuffix("found 2"))
		})
	})
}

func TestQueueLengthIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		client := newClient(answers)
		client.bound, client.patience = 1, time.Minute
		client.list(1)
		_, err := client.search()
		g.Expect(err).NotTo(HaveOccurred())
		set := client.listed.Load().set
		for range balance.QueueLimit {
			choice, _ := set.Take(balance.Request{Now: time.Now()}, netip.AddrPort{}, new(balance.Waiter))
			g.Expect(choice.Full()).To(BeTrue())
		}
		client.log = nil
		g.Expect(client.find()).To(Equal("no endpoint had a free slot, and 1024 clients were already in the queue"))
		g.Expect(set.Queued()).To(Equal(balance.QueueLimit))
	})
}

// TestQueue expects that a queued client is served when a slot becomes free. The client then has as much time for
// attempts as if it had not waited.
func TestQueue(t *testing.T) {
	const timeout = 3 * time.Second
	for _, c := range []struct {
		name   string
		change func(c *client, has *balance.Endpoint) // one second after the start
		want   string
	}{
		{"gets the full schedule on the endpoint with a free slot", func(c *client, has *balance.Endpoint) {
			c.behaviour[1] = silent
			has.Release()
		}, "queued@1000 1@1250:no answer 1@1750:no answer 1@2750:no answer 1@4750:no answer every attempt failed"},
		{"gets an added endpoint", func(c *client, _ *balance.Endpoint) { c.list(1, 2) }, "queued@1000 2@1000:ok found 2"},
		{"fails at the queue timeout", func(*client, *balance.Endpoint) {}, "queued@3000 no endpoint had a free slot in time"},
		{"fails when the last endpoint is removed", func(c *client, _ *balance.Endpoint) { c.list() }, "queued@1000 the Service has no usable endpoint"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				client := newClient(answers)
				client.behaviour[2] = answers
				client.bound, client.patience = 1, timeout
				client.list(1)
				has, err := client.search()
				g.Expect(err).NotTo(HaveOccurred())
				client.log = nil
				time.AfterFunc(time.Second, func() { c.change(client, has) })
				g.Expect(client.find()).To(Equal(c.want))
				g.Expect(client.listed.Load().set.Queued()).To(BeZero())
			})
		})
	}
}

// TestQueuedClientGetsAnEndpointThatHasRecovered expects that a client in the queue uses an endpoint that it had tried
// without success, once that serves again.
func TestQueuedClientGetsAnEndpointThatHasRecovered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		client := newClient(answers)
		client.bound, client.patience, client.quarantine.UntilProbe = 1, 30*time.Second, true
		client.list(1)
		full, err := client.search()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(number(full.Addr)).To(Equal(1))
		client.behaviour[2] = refusesFor(4 * time.Second)
		client.list(1, 2)
		time.AfterFunc(5*time.Second, func() {
			set := client.listed.Load().set
			set.Find(endpointAddr(2)).Report(balance.Report{Kind: balance.RecheckPassed, Now: time.Now()}, client.quarantine)
		})
		g.Expect(client.find()).To(Equal("2@0:connection refused queued@5000 2@5000:ok found 2"))
	})
}
