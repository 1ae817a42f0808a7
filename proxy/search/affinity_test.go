package search

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/affinity"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/conn"
)

func TestAffinityOfTwoQueuedConnections(t *testing.T) {
	g := NewWithT(t)
	var pool balance.Pool
	list := []config.Endpoint{{Addr: endpointAddr(1), Ready: true}, {Addr: endpointAddr(2), Ready: true}}
	pool.Update(config.ServicePort{Policy: config.Policy{EndpointLimit: 1, QueueTimeout: time.Minute}, Endpoints: list, Cluster: list}, time.Now())
	table := affinity.NewTable(&affinity.Limits{PerTable: 10, Total: 10}, time.Hour)
	now := time.Now()
	search := func(client int) *Search {
		return &Search{Schedule: DefaultSchedule, Affinity: table, Client: endpointAddr(client).Addr(), Record: &conn.Record{Port: &conn.Port{}}}
	}
	next := func(s *Search) Step { return s.Next(pool.Cluster, now) }
	first, second := next(search(101)).Endpoint, next(search(102)).Endpoint

	one, other, stranger := search(200), search(200), search(103)
	g.Expect(next(one).Do).To(Equal(Wait))
	g.Expect(next(other).Do).To(Equal(Wait))
	g.Expect(next(stranger).Do).To(Equal(Wait))
	first.Release()
	g.Expect(next(one).Endpoint).To(BeIdenticalTo(first))
	one.Connected(now)
	second.Release()
	g.Expect(next(other).Do).To(Equal(Wait), "it waits for the endpoint that the client has")
	g.Expect(next(stranger).Endpoint).To(BeIdenticalTo(second))
	had, ok := table.Get(one.Client, now)
	g.Expect(ok).To(BeTrue())
	g.Expect(had).To(Equal(first.Addr))
	first.Release()
	g.Expect(next(other).Endpoint).To(BeIdenticalTo(first))
	g.Expect([]int64{first.Active.Load(), second.Active.Load()}).To(Equal([]int64{1, 1}))
}
