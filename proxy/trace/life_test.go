package trace_test

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/trace"
)

var (
	client   = netip.MustParseAddrPort("192.0.2.2:48200")
	endpoint = netip.MustParseAddrPort("10.1.0.7:80")
)

// BenchmarkConnection measures a connection with four events.
func BenchmarkConnection(b *testing.B) {
	of := port(trace.NewLog(8192))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := uint64(0); pb.Next(); i++ {
			now := time.Now()
			c := &conn.Record{ID: i, Port: of, From: client, Start: now}
			c.Accepted()
			c.Attempted(now, conn.Attempt{Endpoint: endpoint, Pod: "default/web-1", Reason: balance.ByTurn, Duration: time.Millisecond})
			c.Closed(now, outcome.Result{Outcome: outcome.ClientClosed, ToEndpoint: 70, ToClient: 200}, endpoint)
		}
	})
}

// mover has moved data.
type mover struct{}

func (mover) Bytes() (toEndpoint, toClient int64) { return 1, 2 }

var _ = Describe("the record of a connection", func() {
	var log *trace.Log
	BeforeEach(func() { log = trace.NewLog(10) })

	// begin records the start of a connection and a number of failed attempts.
	begin := func(id uint64, failed int) *conn.Record {
		c := record(log, id)
		c.Accepted()
		for i := range failed {
			c.Attempted(c.Start.Add(time.Duration(i+1)*time.Second), conn.Attempt{Duration: time.Second, Result: conn.Refused, Err: "connection refused"})
		}
		return c
	}
	any := func(*conn.Record) bool { return true }

	It("contains its attempts, their start times and the successful one", func() {
		life := begin(1, 2)
		_, ok := life.Established()
		Expect(ok).To(BeFalse())
		life.Attempted(life.Start.Add(3*time.Second), conn.Attempt{Duration: time.Second, Endpoint: endpoint})
		chosen, ok := life.Established()
		Expect(ok).To(BeTrue())
		Expect(chosen.Endpoint).To(Equal(endpoint))
		var began []time.Duration
		for _, t := range life.Attempts() {
			began = append(began, t.Start)
		}
		Expect(began).To(Equal([]time.Duration{0, time.Second, 2 * time.Second}))
		Expect(life.Tries()).To(Equal(3))
	})

	It("is listed as open from accept to close, and then as ended", func() {
		lives := map[uint64]*conn.Record{}
		for id := range uint64(40) { // several in each shard of the register
			lives[id] = begin(id, 0)
		}
		Expect(log.Open(any)).To(HaveLen(40))
		for _, id := range []uint64{16, 0, 32, 7} { // first, middle and last of a shard
			lives[id].Closed(time.Now(), outcome.Result{Outcome: outcome.ClientClosed}, netip.AddrPort{})
		}
		Expect(log.Open(any)).To(HaveLen(36))
		open, ended := log.Find(16)
		Expect(open).To(BeNil())
		Expect(ended.Record).To(BeIdenticalTo(lives[16]))
		open, ended = log.Find(17)
		Expect(open).To(BeIdenticalTo(lives[17]))
		Expect(ended).To(BeNil())
		open, ended = log.Find(1000)
		Expect(open == nil && ended == nil).To(BeTrue())
	})

	It("is found once while other connections start and end without blocking", func() {
		log := trace.NewLog(10)
		const lasting = 20_000
		for id := range uint64(lasting) {
			record(log, 2*id+1).Accepted()
		}
		found, others := map[uint64]int{}, uint64(0)
		done := make(chan struct{})
		go func() {
			defer close(done)
			log.Open(func(l *conn.Record) bool {
				others += 2
				other := record(log, others)
				other.Accepted() // would wait forever if Open held a lock
				other.Closed(time.Now(), outcome.Result{}, netip.AddrPort{})
				found[l.ID]++
				return true
			})
		}()
		Eventually(done).WithTimeout(20 * time.Second).Should(BeClosed())
		Expect(found).To(HaveLen(lasting))

		By("sharing a search among readers while connections start and end")
		var looks sync.WaitGroup
		over := make(chan struct{})
		looks.Go(func() {
			for id := uint64(2 * lasting); ; id += 2 {
				select {
				case <-over:
					return
				default:
					c := record(log, id)
					c.Accepted()
					c.Closed(time.Now(), outcome.Result{}, netip.AddrPort{})
				}
			}
		})
		var lists [4][]*conn.Record
		var readers sync.WaitGroup
		for i := range lists {
			readers.Go(func() { lists[i] = log.Open(func(l *conn.Record) bool { return l.ID%2 == 1 }) })
		}
		readers.Wait()
		close(over)
		looks.Wait()
		for _, list := range lists {
			Expect(list).To(HaveLen(lasting))
		}
		open, _ := log.Find(2*lasting - 1)
		Expect(open).NotTo(BeNil())
	})

	It("does not retain its mover if it has already ended", func() {
		life := begin(1, 0)
		life.Closed(time.Now(), outcome.Result{}, netip.AddrPort{})
		log.Moves(life, mover{})
		toEndpoint, toClient := log.Bytes(life)
		Expect([]int64{toEndpoint, toClient}).To(Equal([]int64{0, 0}))
	})

	It("has a sequence number of its end, so that readers can count missed ones", func() {
		reader := log.Reader(true)
		for id := range uint64(30) {
			record(log, id).Closed(time.Now(), outcome.Result{}, netip.AddrPort{})
		}
		buf := make([]trace.Event, 1)
		_, missed := reader.Poll(buf)
		Expect(missed).To(BeEquivalentTo(20))
		Expect(buf[0].Ended).To(BeEquivalentTo(21))
	})
})

var _ = Describe("changes", func() {
	It("are kept when connections displace each other, and are in order with their steps", func() {
		log := trace.NewLog(3)
		log.Change(&trace.Event{Kind: trace.ServiceAdded})
		for range 5 {
			step(log, 1)
		}
		log.Change(&trace.Event{Kind: trace.PortalRepaired, Count: 2})
		r, buf := log.Reader(false), make([]trace.Event, 10)
		n, _ := r.Poll(buf)
		Expect(seqs(buf[:n])).To(Equal([]uint64{1, 4, 5, 6, 7}))
		Expect(buf[4].String()).To(Equal("portal repaired: 2 parts missing or changed"))

		n, missed := log.ReaderBehind(2).Poll(buf)
		Expect(seqs(buf[:n])).To(Equal([]uint64{4, 5, 6, 7}))
		Expect(missed).To(BeEquivalentTo(1), "number 3")
		n, missed = log.ReaderBehind(100).Poll(buf)
		Expect(n + int(missed)).To(BeZero())

		r = log.ReaderBehind(1)
		r.OnlyChanges()
		n, missed = r.Poll(buf)
		Expect(seqs(buf[:n])).To(Equal([]uint64{7}))
		Expect(missed).To(BeZero(), "only steps are no longer kept")
	})

	It("are read behind more steps than a reader visits at once", func() {
		log := trace.NewLog(3000)
		for id := range uint64(3000) { // of several parts
			step(log, id)
		}
		log.Change(&trace.Event{Kind: trace.ServiceAdded})
		r, buf := log.Reader(false), make([]trace.Event, 10)
		r.OnlyChanges()
		n, _ := r.Poll(buf)
		Expect(seqs(buf[:n])).To(Equal([]uint64{3001}))
		for id := range uint64(2000) {
			step(log, id)
		}
		for range 1024 + 1 { // more than a Log keeps
			log.Change(&trace.Event{Kind: trace.ServiceAdded})
		}
		r = log.ReaderBehind(3000)
		r.OnlyChanges()
		n, missed := r.Poll(buf[:2])
		Expect(seqs(buf[:n])).To(Equal([]uint64{5003, 5004}))
		Expect(missed).To(BeEquivalentTo(1))
	})
})
