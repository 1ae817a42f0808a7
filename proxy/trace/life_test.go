package trace_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/trace"
)

// live adds the four events of a connection whose first attempt succeeds.
func live(log *trace.Log, id uint64) {
	now := time.Now()
	life := log.Begin(trace.Subject{Conn: id, Port: lifePort, Protocol: config.TCP, Client: lifeClient, VIP: lifeVIP}, now)
	log.Step(life, &trace.Event{Kind: trace.Accepted, Time: now})
	log.Step(life, &trace.Event{Kind: trace.Attempt, Time: now, Attempt: 1, Endpoint: lifeEndpoint, Pod: "default/web-1", Reason: "round robin", Took: time.Millisecond})
	log.Step(life, &trace.Event{Kind: trace.Established, Time: now, Endpoint: lifeEndpoint, Pod: "default/web-1"})
	log.Step(life, &trace.Event{Kind: trace.Closed, Time: now, End: trace.ClientClosed, Endpoint: lifeEndpoint, Pod: "default/web-1", ToEndpoint: 70, ToClient: 200})
}

var (
	lifePort     = config.PortID{Namespace: "default", Service: "web", Port: "http", Family: config.IPv4}
	lifeClient   = netip.MustParseAddrPort("192.0.2.2:48200")
	lifeVIP      = netip.MustParseAddrPort("10.96.0.10:80")
	lifeEndpoint = netip.MustParseAddrPort("10.1.0.7:80")
)

// BenchmarkConnection is what a connection costs that leaves four events.
func BenchmarkConnection(b *testing.B) {
	log := trace.NewLog(8192)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := uint64(0); pb.Next(); i++ {
			live(log, i)
		}
	})
}
