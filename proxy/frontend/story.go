package frontend

import (
	"sync/atomic"
	"time"

	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/latency"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/trace"
)

// Story is what is known of the clients of a service port besides their Totals. Those that had no client
// yet, which are most of ten thousand, have none.
type Story struct {
	Connect   latency.Histogram // latency.Seconds, until established
	FirstByte latency.Histogram // latency.Seconds, until the endpoint's first byte for the client
	Lasted    latency.Histogram // latency.Lasting, of those that have ended
	Bytes     latency.Histogram // latency.Bytes, both directions, of those that have ended
	ends      [outcome.Outcomes]atomic.Int64
}

// Story returns f's, or nil.
func (f *FrontEnd) Story() *Story { return f.story.Load() }

// writeStory returns f's story, which is there from then on.
func (f *FrontEnd) writeStory() *Story {
	if f.story.Load() == nil {
		f.story.CompareAndSwap(nil, new(Story))
	}
	return f.story.Load()
}

// Ends returns how many have ended how; only ends that there were.
func (s *Story) Ends() map[outcome.Outcome]int64 { return endsNow(&s.ends) }

// count counts a step of a client's.
func (s *Story) count(life *conn.Record, e *trace.Event) {
	switch {
	case e.Kind == trace.Established && life.Tries() > 0: // not adopted
		took := e.Time.Sub(life.Began)
		s.Connect.Observe(latency.Seconds, e.Time, took.Seconds(), example(life, life.Flags(took, outcome.Open)))
	case e.Kind == trace.Closed:
		s.ends[e.End.Outcome].Add(1)
		if e.Endpoint.IsValid() { // it had one
			s.Lasted.Observe(latency.Lasting, e.Time, e.Took.Seconds(), example(life, e.Flags))
			s.Bytes.Observe(latency.Bytes, e.Time, float64(e.End.ToEndpoint+e.End.ToClient), example(life, e.Flags))
		}
	}
}

// example returns the number of a connection with which something is amiss, and otherwise 0.
func example(life *conn.Record, f conn.Flags) uint64 {
	if f == 0 {
		return 0
	}
	return life.ID
}

// Answered notes that the first byte has come for the client, from the endpoint that it has.
func (c *Client) Answered(now time.Time, from *balance.Endpoint) {
	c.Record.Answered(now)
	took := c.FirstByte()
	c.Front.writeStory().FirstByte.Observe(latency.Seconds, now, took.Seconds(), example(c.Record, c.Flags(took, outcome.Open)))
	from.Times().FirstByte.Observe(latency.Seconds, now, took.Seconds())
}
