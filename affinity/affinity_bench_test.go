package affinity_test

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/usherproxy/usher/affinity"
)

// BenchmarkTable measures a new connection of a known client, as most are, and of an unknown client while the table
// is full.
func BenchmarkTable(b *testing.B) {
	const bound = 10_000
	now := time.Now()
	clientAt := func(n uint32) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}) }
	full := func() *affinity.Table {
		table := affinity.NewTable(&affinity.Limits{PerTable: bound, Total: bound}, time.Hour)
		for n := range uint32(bound) {
			table.Set(clientAt(n), one, now)
		}
		return table
	}
	b.Run("known client", func(b *testing.B) {
		table := full()
		b.ReportAllocs()
		b.ResetTimer()
		var next atomic.Uint32
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				client := clientAt(next.Add(1) % bound)
				had, ok := table.Get(client, now)
				if !ok {
					b.Errorf("%s is not known", client)
					return
				}
				table.Set(client, had, now)
			}
		})
	})
	b.Run("new client, table full", func(b *testing.B) {
		table := full()
		b.ReportAllocs()
		next := uint32(bound)
		for b.Loop() {
			table.Claim(clientAt(next), one, now)
			next++
		}
	})
}
