package trace_test

import (
	"fmt"
	"testing"

	"github.com/usherproxy/usher/proxy/trace"
)

// Every connection adds at least four events, from any goroutine; mostly nobody
// reads them.
func BenchmarkAdd(b *testing.B) {
	for _, readers := range []int{0, 1} {
		b.Run(fmt.Sprintf("%d readers", readers), func(b *testing.B) {
			log := trace.NewLog(8192)
			for range readers {
				r := log.Reader(true)
				go func() {
					buf := make([]trace.Event, 64)
					for {
						if _, _, err := r.Next(b.Context(), buf); err != nil {
							return
						}
					}
				}()
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					log.Add(trace.Event{Kind: trace.Accepted})
				}
			})
		})
	}
}
