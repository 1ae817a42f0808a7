package admin

import (
	"time"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/latency"
)

// recentLatency is how long clients of some service ports or of an endpoint waited recently.
type recentLatency struct{ connect, firstByte latency.Sum }

// forAPI returns l in the API's form; nil if it is empty.
func (l *recentLatency) forAPI() *api.Latency {
	ms := func(of *latency.Sum, q float64) float64 {
		seconds, _ := of.Quantile(latency.Seconds, q)
		return 1000 * seconds
	}
	if _, any := l.connect.Quantile(latency.Seconds, 0.5); !any {
		return nil
	}
	return &api.Latency{Clients: l.connect.Number(), ConnectP50Ms: ms(&l.connect, 0.5), ConnectP99Ms: ms(&l.connect, 0.99),
		FirstByteP50Ms: ms(&l.firstByte, 0.5), FirstByteP99Ms: ms(&l.firstByte, 0.99)}
}

// latency returns how long clients of the service ports waited recently, or nil.
func (g group) latency(now time.Time) *api.Latency {
	var l recentLatency
	for _, v := range g {
		if s := v.PortMetrics; s != nil {
			l.connect.Add(&s.Recent.Connect, now)
			l.firstByte.Add(&s.Recent.FirstByte, now)
		}
	}
	return l.forAPI()
}

// ends counts clients of the service ports by how they ended; nil if there are none.
func (g group) ends() (all map[string]int64) {
	for _, v := range g {
		if v.PortMetrics == nil {
			continue
		}
		for end, n := range v.PortMetrics.Ends() {
			if all == nil {
				all = map[string]int64{}
			}
			all[end.String()] += n
		}
	}
	return all
}

// recentLatencyOf returns how long clients of an endpoint waited.
func recentLatencyOf(e *balance.Endpoint, now time.Time) (l recentLatency) {
	if t := e.ExistingTimes(); t != nil {
		l.connect.Add(&t.Connect, now)
		l.firstByte.Add(&t.FirstByte, now)
	}
	return l
}
