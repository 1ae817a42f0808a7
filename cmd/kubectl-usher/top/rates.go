package top

import (
	"time"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// rate has numbers per second.
type rate struct {
	accepted, retries, failed, bytes float64
}

// rates has the rates of the whole proxy, and those of the Services that are in both of the last two answers.
type rates struct {
	all      rate
	services map[string]rate

	// The previous answer.
	instance string
	at       time.Time
	total    api.Totals
	totals   map[string]api.Totals
}

// next returns the rates between the previous answer and a. If the interval is less than shortest, it returns r: in a
// short interval, one connection looks like many a second. Another usher process counts from 0, so there are no rates
// at first.
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
