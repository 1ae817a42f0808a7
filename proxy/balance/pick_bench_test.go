package balance_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/usherproxy/usher/proxy/balance"
)

// A choice is made for every connection, by all acceptors at once.
func BenchmarkPick(b *testing.B) {
	for _, n := range []int{1, 10, 250} {
		for _, quarantined := range []int{0, n / 2} {
			if n == 1 && quarantined > 0 {
				continue
			}
			b.Run(fmt.Sprintf("%d endpoints, %d in quarantine", n, quarantined), func(b *testing.B) {
				var pool balance.Pool
				var ns []int
				for i := range n {
					ns = append(ns, i+1)
				}
				pool.Update(port(endpoints(ns...)))
				now := time.Now()
				for _, e := range pool.All[:quarantined] {
					e.Fail(now, now, errors.New("refused"), balance.Quarantine{First: time.Hour, Max: time.Hour})
				}
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if _, ok := pool.Cluster.Pick(now, nil); !ok {
							b.Fatal("no endpoint")
						}
					}
				})
			})
		}
	}
}
