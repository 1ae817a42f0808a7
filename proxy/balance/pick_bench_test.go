package balance_test

import (
	"fmt"
	"testing"

	"github.com/usherproxy/usher/proxy/balance"
)

// A choice is made for every connection, by all acceptors at once.
func BenchmarkPick(b *testing.B) {
	for _, c := range []struct{ endpoints, quarantined int }{{1, 0}, {10, 0}, {10, 5}, {250, 0}, {250, 125}} {
		b.Run(fmt.Sprintf("%d endpoints, %d in quarantine", c.endpoints, c.quarantined), func(b *testing.B) {
			var pool balance.Pool
			var ns []int
			for i := range c.endpoints {
				ns = append(ns, i+1)
			}
			pool.Update(port(endpoints(ns...)))
			for _, e := range pool.All[:c.quarantined] {
				e.Fail(start, start, errRefused, quarantine)
			}
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, ok := pool.Cluster.Pick(start, nil); !ok {
						b.Error("no endpoint")
						return
					}
				}
			})
		})
	}
}
