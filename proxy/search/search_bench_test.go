package search

import (
	"net/netip"
	"testing"
	"time"

	"github.com/usherproxy/usher/proxy/conn"
)

// BenchmarkSearch measures a search whose first attempt succeeds at once, without the dialing: choosing the endpoint,
// and reporting the result.
func BenchmarkSearch(b *testing.B) {
	c := newClient(answers, answers, answers)
	set, client := c.listed.Load().set, netip.MustParseAddr("192.0.2.1")
	b.ReportAllocs()
	for b.Loop() {
		s := Search{Schedule: c.schedule, Policy: c.quarantine, Affinity: c.table, Client: client, Record: &conn.Record{Port: &conn.Port{}, Start: time.Now()}}
		now := time.Now()
		if s.Next(set, now).Do != Dial {
			b.Fatal("there is no endpoint")
		}
		s.Connected(now)
	}
}
