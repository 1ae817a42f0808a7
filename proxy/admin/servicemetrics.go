package admin

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/latency"
)

// maxServiceSeries is the number of Services with separate series.
const maxServiceSeries = 1000

// others is the label service of the remaining Services.
const others = "(others)"

// serviceSeries holds the series of single Services. A Service keeps its series for as long as it is served,
// so that its counters do not come and go.
type serviceSeries struct {
	mu   sync.Mutex
	has  map[types.NamespacedName]bool
	rest map[types.NamespacedName]bool // those in others; they stay there: moving them would make its counters go down
}

// collect sends the series, and the number of endpoints by state.
func (s *serviceSeries) collect(out chan<- prometheus.Metric, a *API) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var rest serviceNumbers
	counts := map[api.EndpointState]int{}
	still, stay := map[types.NamespacedName]bool{}, map[types.NamespacedName]bool{}
	views := a.proxy.Status()
	all := groups(views)
	for _, g := range all {
		if name := g.name(); s.has[name] {
			still[name] = true
		}
	}
	for _, g := range all {
		for i := range g {
			for _, e := range g[i].Endpoints {
				counts[stateOf(&g[i], e, now)]++
			}
		}
		name := g.name()
		if !still[name] && g.totals().Accepted > 0 {
			if s.rest[name] || len(still) >= maxServiceSeries {
				stay[name] = true
			} else {
				still[name] = true
			}
		}
		if still[name] {
			var own serviceNumbers
			own.add(g)
			own.send(out, name.Namespace, name.Name)
			is := a.summary(g, nil, now)
			serviceSince.send(out, seconds(is.Since), name.Namespace, name.Name, string(is.State))
		} else {
			rest.add(g)
		}
	}
	s.has, s.rest = still, stay
	rest.send(out, "", others)
	for state, since := range earliest(views, now) {
		endpointsSince.send(out, seconds(since), string(state))
	}
	for _, state := range api.EndpointStates {
		endpointsByState.send(out, float64(counts[state]), string(state))
	}
}

// serviceNumbers are the numbers of one Service, or of several together.
type serviceNumbers struct {
	totals                            api.Totals
	ends                              map[string]int64
	connect, firstByte, lasted, bytes latency.All
}

func (n *serviceNumbers) add(g group) {
	n.totals = n.totals.Plus(g.totals())
	for end, count := range g.ends() {
		if n.ends == nil {
			n.ends = map[string]int64{}
		}
		n.ends[end] += count
	}
	for _, v := range g {
		if s := v.PortMetrics; s != nil {
			n.connect.Add(&s.Connect)
			n.firstByte.Add(&s.FirstByte)
			n.lasted.Add(&s.Lasted)
			n.bytes.Add(&s.Bytes)
		}
	}
}

func (n *serviceNumbers) send(out chan<- prometheus.Metric, namespace, service string) {
	t := n.totals
	serviceAccepted.send(out, float64(t.Accepted), namespace, service)
	serviceFailed.send(out, float64(t.Failed), namespace, service)
	serviceRetries.send(out, float64(t.Retries), namespace, service)
	serviceOpen.send(out, float64(t.Active), namespace, service)
	serviceQueue.send(out, float64(t.Queued), namespace, service)
	serviceBytes.send(out, float64(t.BytesToEndpoint), namespace, service, "endpoint")
	serviceBytes.send(out, float64(t.BytesToClient), namespace, service, "client")
	for end, count := range n.ends {
		serviceEnds.send(out, float64(count), namespace, service, end)
	}
	serviceConnect.send(out, &n.connect, namespace, service)
	serviceFirstByte.send(out, &n.firstByte, namespace, service)
	serviceLasted.send(out, &n.lasted, namespace, service)
	serviceConnectionBytes.send(out, &n.bytes, namespace, service)
}

// serviceHistogram is a histogram over a Service's connections.
type serviceHistogram struct {
	metric
	bounds latency.Bounds
}

// serviceHistograms holds all of them, in the order of the documentation.
var serviceHistograms []*serviceHistogram

func newServiceHistogram(name, help string, bounds latency.Bounds) *serviceHistogram {
	labels := []string{"namespace", "service"}
	h := &serviceHistogram{metric{name: name, help: help, labels: labels, desc: prometheus.NewDesc(name, help, labels, nil)}, bounds}
	serviceHistograms = append(serviceHistograms, h)
	return h
}

var (
	serviceConnect         = newServiceHistogram("usher_service_connect_seconds", "Time until a connection of a Service's client was established; for UDP, until the first response.", latency.Seconds)
	serviceFirstByte       = newServiceHistogram("usher_service_first_byte_seconds", "Time from accepting a client of a Service to the endpoint's first byte, excluding time in which the client was connected and sent nothing.", latency.Seconds)
	serviceLasted          = newServiceHistogram("usher_service_connection_duration_seconds", "Duration of ended connections and UDP sessions that had an endpoint.", latency.Lasting)
	serviceConnectionBytes = newServiceHistogram("usher_service_connection_bytes", "Bytes transferred per connection or UDP session, in both directions.", latency.Bytes)
)

// send sends the observed values, with notable connections as exemplars.
func (h *serviceHistogram) send(out chan<- prometheus.Metric, seen *latency.All, labels ...string) {
	number, below := seen.Buckets(h.bounds)
	if number == 0 {
		return
	}
	m := prometheus.MustNewConstHistogram(h.desc, number, seen.Sum, below, labels...)
	var exemplars []prometheus.Exemplar
	for _, e := range seen.Examples {
		exemplars = append(exemplars, prometheus.Exemplar{Value: e.Value, Timestamp: e.Time,
			Labels: prometheus.Labels{"connection": strconv.FormatUint(e.Connection, 10)}})
	}
	if exemplars != nil {
		m = prometheus.MustNewMetricWithExemplars(m, exemplars...)
	}
	out <- m
}
