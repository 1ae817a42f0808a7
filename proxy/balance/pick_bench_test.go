package balance_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/balance"
)

// BenchmarkPick measures a choice of an endpoint. All acceptors choose concurrently, one endpoint for every
// connection.
func BenchmarkPick(b *testing.B) {
	for _, c := range []struct{ endpoints, quarantined int }{{1, 0}, {10, 0}, {10, 5}, {250, 0}, {250, 125}, {10_000, 10_000}} {
		b.Run(fmt.Sprintf("%d endpoints, %d in quarantine", c.endpoints, c.quarantined), func(b *testing.B) {
			var pool balance.Pool
			var ns []int
			for i := range c.endpoints {
				ns = append(ns, i+1)
			}
			pool.Update(port(endpoints(ns...)), start)
			for _, e := range pool.All[:c.quarantined] {
				fail(e, start, start, quarantine)
			}
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, ok := pool.Cluster.Pick(balance.Request{Now: start}); !ok {
						b.Error("no endpoint")
						return
					}
				}
			})
		})
	}
}

// BenchmarkSchedulers measures the cost of a connection with each scheduler: the choice, and counting it until it
// ends.
func BenchmarkSchedulers(b *testing.B) {
	for _, name := range config.SchedulerNames() {
		for _, n := range []int{3, 64, 1000} {
			b.Run(fmt.Sprintf("%s, %d endpoints", name, n), func(b *testing.B) {
				var pool balance.Pool
				var scheduler config.Scheduler
				if err := scheduler.UnmarshalText([]byte(name)); err != nil {
					b.Fatal(err)
				}
				list := make([]config.Endpoint, n)
				for i := range list {
					list[i].Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)
				}
				p := port(list)
				p.Scheduler = scheduler
				pool.Update(p, start)
				b.ReportAllocs()
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					var open [64]*balance.Endpoint // each loop has open connections
					for i := 0; pb.Next(); i++ {
						c, _ := pool.Cluster.Pick(balance.Request{Now: start, Client: client(i)})
						c.Endpoint.Take()
						if last := open[i%len(open)]; last != nil {
							last.Release()
						}
						open[i%len(open)] = c.Endpoint
					}
				})
			})
		}
	}
}
