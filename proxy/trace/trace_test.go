package trace_test

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/trace"
)

func TestTrace(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "trace")
}

func seqs(events []trace.Event) (list []uint64) {
	for _, e := range events {
		list = append(list, e.Seq)
	}
	return list
}

// port returns a service port whose connections log to log.
func port(log *trace.Log) *conn.Port {
	return &conn.Port{ID: config.PortID{Namespace: "default", Service: "web", Port: "http", Family: config.IPv4}, Protocol: config.TCP, Observers: []conn.Observer{log}}
}

// record returns the record of a connection that logs to log.
func record(log *trace.Log, id uint64) *conn.Record {
	return &conn.Record{ID: id, Port: port(log), From: client, Start: time.Now()}
}

// step adds a step of a connection.
func step(log *trace.Log, id uint64) {
	record(log, id).Delayed(conn.Waiting, time.Now(), time.Second)
}

var _ = Describe("a Log", func() {
	It("returns old and new events to a reader in order", func() {
		log := trace.NewLog(10)
		step(log, 7)
		r := log.Reader(false)
		step(log, 8)
		buf := make([]trace.Event, 5)
		n, missed, err := r.Next(context.Background(), buf)
		Expect(err).NotTo(HaveOccurred())
		Expect(missed).To(BeZero())
		Expect(seqs(buf[:n])).To(Equal([]uint64{1, 2}))
		Expect(buf[0].Conn).To(BeEquivalentTo(7))
		n, _ = r.Poll(buf)
		Expect(n).To(BeZero())
	})

	It("returns only later events to a reader of new events", func() {
		log := trace.NewLog(10)
		step(log, 1)
		r := log.Reader(true)
		step(log, 1)
		buf := make([]trace.Event, 5)
		n, _ := r.Poll(buf)
		Expect(seqs(buf[:n])).To(Equal([]uint64{2}))
	})

	It("keeps the newest events when full and reports the number missed to slow readers", func() {
		log := trace.NewLog(3)
		r := log.Reader(false)
		for range 5 {
			step(log, 1)
		}
		buf := make([]trace.Event, 2)
		n, missed := r.Poll(buf)
		Expect(seqs(buf[:n])).To(Equal([]uint64{3, 4}))
		Expect(missed).To(BeEquivalentTo(2))
		n, missed = r.Poll(buf)
		Expect(seqs(buf[:n])).To(Equal([]uint64{5}))
		Expect(missed).To(BeZero())
	})

	It("formats an event in one line and escapes control characters", func() {
		e := trace.Event{Kind: trace.Attempt, Attempt: 1, Pod: "default/a\nb", Err: "no \x1b[2Jé\u202e"}
		Expect(e.String()).To(And(ContainSubstring(`default/a\nb`), ContainSubstring(`no \x1b[2Jé\u202e after`)))
	})
	It("wakes a waiting reader", func() {
		log := trace.NewLog(3)
		r := log.Reader(true)
		got := make(chan uint64)
		go func() {
			buf := make([]trace.Event, 1)
			_, _, _ = r.Next(context.Background(), buf)
			got <- buf[0].Seq
		}()
		step(log, 1)
		Eventually(got).Should(Receive(BeEquivalentTo(1)))
	})

	It("returns from a read when its context is canceled", func() {
		log := trace.NewLog(3)
		ctx, cancel := context.WithCancel(context.Background())
		failed := make(chan error)
		go func() {
			_, _, err := log.Reader(true).Next(ctx, make([]trace.Event, 1))
			failed <- err
		}()
		cancel()
		Eventually(failed).Should(Receive(MatchError(context.Canceled)))
	})

	It("loses no events between many writers and a fast reader", func() {
		log := trace.NewLog(10000)
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for i := range 1000 {
					record(log, uint64(i*4+w)).Delayed(conn.Waiting, time.Now(), time.Duration(i))
				}
			})
		}
		next, seq := map[uint64]int{}, uint64(0)
		r, buf := log.Reader(false), make([]trace.Event, 64)
		for total := 0; total < 4000; {
			n, missed, _ := r.Next(context.Background(), buf)
			Expect(missed).To(BeZero())
			for _, e := range buf[:n] {
				Expect(e.Duration).To(BeEquivalentTo(next[e.Conn%4]), "each writer's events are in order")
				next[e.Conn%4]++
				seq++
				Expect(e.Seq).To(Equal(seq))
			}
			total += n
		}
		wg.Wait()
	})
})

var balancer = netip.MustParseAddrPort("10.0.0.1:999")

var _ = DescribeTable("an Event is formatted as a line", func(e trace.Event, line string) {
	e.Conn, e.Port = 5, config.PortID{Namespace: "default", Service: "web", Port: "http", Family: config.IPv4}
	Expect(e.String()).To(Equal("#5 default/web:http " + line))
},
	Entry(nil, trace.Event{Kind: trace.Accepted, Subject: trace.Subject{Client: netip.MustParseAddrPort("10.0.0.1:999"), VIP: netip.MustParseAddrPort("10.96.0.10:80")}},
		"accepted 10.0.0.1:999 → 10.96.0.10:80"),
	Entry(nil, trace.Event{Kind: trace.Accepted, Subject: trace.Subject{Client: netip.MustParseAddrPort("203.0.113.9:1"), Via: &balancer, VIP: netip.MustParseAddrPort("192.0.2.80:80")}},
		"accepted 203.0.113.9:1 → 192.0.2.80:80, through the load balancer at 10.0.0.1:999"),
	Entry(nil, trace.Event{Kind: trace.Attempt, Attempt: 1, Endpoint: netip.MustParseAddrPort("10.1.0.1:80"), Pod: "default/web-1", Reason: "round robin", Skipped: 2, Err: "connection refused", Duration: 240 * time.Microsecond},
		"attempt 1 → 10.1.0.1:80 default/web-1 (round robin, skipped 2 in quarantine): connection refused after 0.24 ms"),
	Entry(nil, trace.Event{Kind: trace.Attempt, Attempt: 2, Endpoint: netip.MustParseAddrPort("[2001:db8::1]:80"), Reason: "affinity", Duration: 253 * time.Millisecond},
		"attempt 2 → [2001:db8::1]:80 (affinity): connected in 253 ms"),
	Entry(nil, trace.Event{Kind: trace.Attempt, Attempt: 1, Endpoint: netip.MustParseAddrPort("10.1.0.1:80"), Reason: "round robin", SourceAddress: portal.SourceClient, Duration: time.Millisecond},
		"attempt 1 → 10.1.0.1:80 (round robin, as the client): connected in 1.00 ms"),
	Entry(nil, trace.Event{Kind: trace.Attempt, Attempt: 1, Endpoint: netip.MustParseAddrPort("10.1.0.1:80"), Reason: "round robin", SourceAddress: portal.SourceElsewhere, Duration: time.Millisecond},
		"attempt 1 → 10.1.0.1:80 (round robin): connected in 1.00 ms"),
	Entry(nil, trace.Event{Kind: trace.Waiting, Duration: 1500 * time.Millisecond}, "no other endpoint to try; waiting 1.5 s"),
	Entry(nil, trace.Event{Kind: trace.Closed, Duration: 90 * time.Minute, End: outcome.Result{Outcome: outcome.AttemptsFailed}}, "closed after 1h30m0s: attempts-failed"),
	Entry(nil, trace.Event{Kind: trace.Closed, Duration: 9 * time.Millisecond, End: outcome.Result{Outcome: outcome.ClientReset, ToEndpoint: 5, ToClient: 7}, Endpoint: netip.MustParseAddrPort("10.1.0.1:80"), Err: "connection reset by peer"},
		"closed after 9.00 ms: client-reset, 5 bytes to 10.1.0.1:80, 7 bytes to the client (connection reset by peer)"),
)
