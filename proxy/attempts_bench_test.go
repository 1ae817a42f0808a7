package proxy

import (
	"testing"
	"time"

	"github.com/usherproxy/usher/proxy/trace"
)

// What an attempt that succeeds at once costs beside the dialing: choosing the
// endpoint, and telling how it went.
func BenchmarkAttempt(b *testing.B) {
	s := newSearch(answers, answers, answers)
	s.report = func(trace.Event) {}
	set, _ := s.endpoints()
	b.ReportAllocs()
	for b.Loop() {
		s.tried, s.count = s.tried[:0], 0
		now := time.Now()
		t, err := s.begin(set, now)
		if err != nil {
			b.Fatal(err)
		}
		s.end(t, now, nil, false)
	}
}
