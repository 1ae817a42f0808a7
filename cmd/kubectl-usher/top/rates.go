package top

import (
	"time"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// rate is how much happens in a second.
type rate struct {
	accepted, retries, failed, bytes float64
}

// rates are the proxy's and those of the Services that both of the last two
// answers tell of.
type rates struct {
	all      rate
	services map[string]rate

	// The answer before.
	instance string
	at       time.Time
	total    api.Totals
	totals   map[string]api.Totals
}

// next returns the rates between the answer before and a. If that is less than
// shortest ago they stay as they are: in a moment, one connection looks like many a
// second. Another process counts anew, so then there are none.
func (r rates) next(a answer, shortest time.Duration) rates {
	if r.instance == a.status.Instance && a.at.Sub(r.at) < shortest {
		return r
	}
	out := rates{services: map[string]rate{}, instance: a.status.Instance, at: a.at, total: a.status.Totals, totals: map[string]api.Totals{}}
	seconds := a.at.Sub(r.at).Seconds()
	same := r.instance == a.status.Instance && seconds > 0
	if same {
		out.all = newRate(r.total, a.status.Totals, seconds)
	}
	for _, s := range a.services {
		key := serviceKey(s)
		out.totals[key] = s.Totals
		if before, ok := r.totals[key]; ok && same {
			out.services[key] = newRate(before, s.Totals, seconds)
		}
	}
	return out
}

func newRate(before, after api.Totals, seconds float64) rate {
	per := func(before, after int64) float64 { return max(0, float64(after-before)/seconds) }
	return rate{
		accepted: per(before.Accepted, after.Accepted),
		retries:  per(before.Retries, after.Retries),
		failed:   per(before.Failed, after.Failed),
		bytes:    per(before.BytesToEndpoint+before.BytesToClient, after.BytesToEndpoint+after.BytesToClient),
	}
}
