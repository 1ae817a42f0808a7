package admin

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/admin/api"
)

// maxServiceSeries is how many Services have series of their own.
const maxServiceSeries = 1000

// others is the label service of those that have not.
const others = "(others)"

// serviceSeries are the series of single Services. A Service that has them keeps
// them for as long as it is served, so that its counters do not come and go.
type serviceSeries struct {
	mu  sync.Mutex
	has map[types.NamespacedName]bool
}

// collect tells them, and how many endpoints there are.
func (s *serviceSeries) collect(out chan<- prometheus.Metric, p *proxy.Proxy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var rest api.Totals
	var counts api.EndpointCounts
	still := map[types.NamespacedName]bool{}
	all := groups(p.Status())
	for _, g := range all {
		if name := g.name(); s.has[name] {
			still[name] = true
		}
	}
	for _, g := range all {
		for i := range g {
			for _, e := range g[i].Endpoints {
				countState(&counts, stateOf(e, now))
			}
		}
		name, t := g.name(), g.totals()
		if !still[name] && t.Accepted > 0 && len(still) < maxServiceSeries {
			still[name] = true
		}
		if still[name] {
			tellService(out, name.Namespace, name.Name, t)
		} else {
			rest = sum(rest, t)
		}
	}
	s.has = still
	tellService(out, "", others, rest)
	endpointsByState.tell(out, float64(counts.Ready), string(api.EndpointReady))
	endpointsByState.tell(out, float64(counts.Suspicious), string(api.EndpointSuspicious))
	endpointsByState.tell(out, float64(counts.Quarantined), string(api.EndpointQuarantined))
	endpointsByState.tell(out, float64(counts.Terminating), string(api.EndpointTerminating))
	endpointsByState.tell(out, float64(counts.NotReady), string(api.EndpointNotReady))
}

func tellService(out chan<- prometheus.Metric, namespace, service string, t api.Totals) {
	serviceAccepted.tell(out, float64(t.Accepted), namespace, service)
	serviceFailed.tell(out, float64(t.Failed), namespace, service)
	serviceRetries.tell(out, float64(t.Retries), namespace, service)
	serviceOpen.tell(out, float64(t.Active), namespace, service)
	serviceQueue.tell(out, float64(t.Queued), namespace, service)
	serviceBytes.tell(out, float64(t.BytesToEndpoint), namespace, service, "endpoint")
	serviceBytes.tell(out, float64(t.BytesToClient), namespace, service, "client")
}
