package trace_test

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/trace"
)

// gone is an ended connection of a Service: its steps, and the time of its end.
type gone struct {
	service string
	refused int           // refused attempts before one succeeds
	wait    time.Duration // for the first byte
	end     outcome.Outcome
	at      time.Time
}

// goes records all steps of a connection.
func goes(log *trace.Log, id uint64, c gone) {
	at := c.at
	if at.IsZero() {
		at = time.Now()
	}
	r := &conn.Record{ID: id, Start: at.Add(-time.Second), Port: slowPort(log)}
	r.Port.ID = config.PortID{Namespace: "default", Service: c.service}
	r.Accepted()
	for range c.refused {
		r.Attempted(r.Start, conn.Attempt{Endpoint: endpoint, Result: conn.Refused, Err: "connection refused"})
	}
	var to netip.AddrPort
	if c.end.Fault() == outcome.FaultNone {
		to = endpoint
		r.Attempted(r.Start, conn.Attempt{Endpoint: to})
		r.EndpointFirstByte(r.Start.Add(c.wait))
	}
	r.Closed(at, outcome.Result{Outcome: c.end}, to)
}

// slowPort returns a service port where a client counts as slow if it waits for more than 200 ms.
func slowPort(log *trace.Log) *conn.Port {
	return &conn.Port{Slow: 200 * time.Millisecond, Observers: []conn.Observer{log}}
}

// ids returns the numbers of the ended connections that the log has kept, newest first.
func ids(log *trace.Log) (list []uint64) {
	for _, e := range log.Ended(math.MaxInt, func(*trace.Event) bool { return true }) {
		list = append(list, e.Conn)
	}
	return list
}

func every(config.PortID) bool { return true }

var _ = Describe("the record of failed, retried and slow connections", func() {
	const good = outcome.ClientClosed

	It("does not count a client's wait before its request as slow", func() {
		began := time.Now().Add(-time.Minute)
		log := trace.NewLog(50)
		life := &conn.Record{ID: 1, Start: began, Port: slowPort(log)}
		life.Attempted(began.Add(30*time.Millisecond), conn.Attempt{Duration: 20 * time.Millisecond, Endpoint: endpoint})
		life.ClientFirstByte(began.Add(10 * time.Second))
		Expect(life.FirstByte()).To(BeZero())
		Expect(life.Flags(10*time.Second, outcome.Open)).To(BeZero())
		life.EndpointFirstByte(began.Add(10*time.Second + 50*time.Millisecond))
		Expect(life.FirstByte()).To(Equal(80 * time.Millisecond))

		spoken := &conn.Record{Start: began, Port: slowPort(log)}
		spoken.Attempted(began, conn.Attempt{Endpoint: endpoint})
		spoken.EndpointFirstByte(began.Add(time.Second))
		spoken.ClientFirstByte(began.Add(2 * time.Second))
		Expect(spoken.FirstByte()).To(Equal(time.Second), "the endpoint spoke first")
	})

	It("does not count unanswered or inherited UDP sessions as slow", func() {
		began := time.Now().Add(-time.Minute)
		log := trace.NewLog(50)
		silent := &conn.Record{Start: began, Port: &conn.Port{Slow: 200 * time.Millisecond, Protocol: config.UDP, Observers: []conn.Observer{log}}}
		Expect(silent.Flags(time.Minute, outcome.Idle)).To(BeZero())
		silent.EndpointFirstByte(began.Add(time.Second))
		Expect(silent.Flags(time.Minute, outcome.Idle)).To(Equal(conn.Slow))
		adopted := &conn.Record{Start: began, Port: &conn.Port{Slow: 200 * time.Millisecond, Protocol: config.UDP, Observers: []conn.Observer{log}}}
		adopted.Adopted(began, endpoint, "")
		Expect(adopted.Flags(time.Minute, outcome.Idle)).To(BeZero())
		Expect(adopted.FirstByte()).To(BeZero())
	})

	It("keeps its connections when successful ones have displaced their steps", func() {
		log := trace.NewLog(50)
		log.Keep(10)
		goes(log, 1, gone{service: "web", end: outcome.AttemptsFailed, refused: 2})
		goes(log, 2, gone{service: "web", end: good, refused: 1})
		goes(log, 3, gone{service: "web", end: good, wait: 201 * time.Millisecond})
		for id := range uint64(1000) {
			goes(log, 4+id, gone{service: "web", end: good, wait: 200 * time.Millisecond})
		}
		all := ids(log)
		Expect(all[len(all)-3:]).To(Equal([]uint64{3, 2, 1}))
		Expect(slices.Compact(slices.Clone(all))).To(Equal(all), "no connection is listed twice")
		for id, words := range map[uint64][]string{1: {"retried", "slow", "failed"}, 2: {"retried"}, 3: {"slow"}} {
			_, end := log.Find(id)
			Expect(end).NotTo(BeNil())
			Expect(end.Flags.Words()).To(Equal(words))
		}
		_, end := log.Find(4)
		Expect(end).To(BeNil())
		_, end = log.Find(1003)
		Expect(end.Flags.Words()).To(Equal([]string{"ok"}))
	})

	It("keeps connections of a Service when another Service or kind has many", func() {
		log := trace.NewLog(1)
		log.Keep(100)
		for id := range uint64(10) {
			goes(log, 1+id, gone{service: "quiet", end: outcome.AttemptsFailed})
			goes(log, 11+id, gone{service: "loud", end: outcome.SourceDenied})
			goes(log, 21+id, gone{service: "loud", end: good, refused: 1})
		}
		for id := range uint64(10000) {
			goes(log, 100+id, gone{service: "loud", end: outcome.AttemptsFailed})
		}
		all := ids(log)
		Expect(all).To(HaveLen(100))
		Expect(all[:70]).To(HaveEach(BeNumerically(">=", 10030)))
		Expect(all[70:]).To(ConsistOf(func() (some []any) {
			for id := range uint64(30) {
				some = append(some, 1+id)
			}
			return some
		}()...))
	})

	It("is limited to the configured number if more Services have failures", func() {
		log := trace.NewLog(1)
		log.Keep(50)
		for id := range uint64(200) {
			goes(log, 1+id, gone{service: fmt.Sprint("web-", id), end: outcome.AttemptsFailed})
		}
		Expect(ids(log)).To(HaveLen(50))
	})

	It("reports how far back it reaches, for each Service", func() {
		log := trace.NewLog(1)
		log.Keep(4)
		start := time.Now().Add(time.Hour) // all times are later than the log
		for i := range 10 {
			goes(log, uint64(1+i), gone{service: "loud", end: outcome.AttemptsFailed, at: start.Add(time.Duration(i) * time.Second)})
		}
		goes(log, 20, gone{service: "quiet", end: outcome.AttemptsFailed, at: start.Add(time.Minute)})
		goes(log, 21, gone{service: "quiet", end: good, at: start.Add(2 * time.Minute)})
		of := func(service string) trace.Reaches {
			return log.Reaches(func(id config.PortID) bool { return id.Service == service })
		}
		Expect(of("loud").All).To(BeTemporally("~", start.Add(2*time.Minute), time.Millisecond))
		Expect(of("loud").Amiss).To(BeTemporally("~", start.Add(6*time.Second), time.Millisecond))
		Expect(of("quiet").Amiss).To(BeTemporally("<", start))
		Expect(log.Reaches(every).Amiss).To(Equal(of("loud").Amiss))
	})

	It("is empty if its size is 0", func() {
		log := trace.NewLog(1)
		log.Keep(0)
		goes(log, 1, gone{service: "web", end: outcome.AttemptsFailed})
		goes(log, 2, gone{service: "web", end: good})
		Expect(ids(log)).To(Equal([]uint64{2}))
		r := log.Reaches(every)
		Expect(r.Amiss).To(Equal(r.All))
	})
})

// BenchmarkKept measures keeping a connection while the log is full of failures of few or many Services.
func BenchmarkKept(b *testing.B) {
	for _, services := range []int{1, 1000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			log := trace.NewLog(4096)
			log.Keep(4096)
			names := make([]string, services)
			for i := range names {
				names[i] = fmt.Sprint("web-", i)
			}
			id := uint64(0)
			for b.Loop() {
				id++
				goes(log, id, gone{service: names[id%uint64(services)], end: outcome.AttemptsFailed, refused: 2})
			}
		})
	}
}
