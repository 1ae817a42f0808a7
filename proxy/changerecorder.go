package proxy

import (
	"net/netip"
	"reflect"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/trace"
)

// maxRecorded is the maximum number of changes that one Apply records individually. Without it, a large change would
// displace all earlier records.
const maxRecorded = 100

// changeRecorder records configuration changes in the trace. Proxy.mu guards it.
type changeRecorder struct {
	now     time.Time // zero outside of an Apply
	left    int       // changes that may still be recorded individually
	omitted int       // changes that were not recorded
}

// begin starts recording the changes of one Apply.
func (t *changeRecorder) begin() { t.now, t.left, t.omitted = time.Now(), maxRecorded, 0 }

// end stops recording, and records the number of omitted changes.
func (t *changeRecorder) end(log *trace.Log) {
	if t.omitted > 0 {
		log.Change(&trace.Event{Kind: trace.MoreChanges, Time: t.now, Count: t.omitted})
	}
	*t = changeRecorder{}
}

// record records a change, unless maxRecorded is reached.
func (t *changeRecorder) record(log *trace.Log, id config.PortID, e trace.Event) {
	if t.left == 0 {
		t.omitted++
		return
	}
	t.left--
	e.Time, e.Port = t.now, id
	log.Change(&e)
}

// service records the addition or removal of s. Call it before the change.
func (t *changeRecorder) service(p *Proxy, s config.Service) {
	_, had := p.services[s.Name]
	id := config.PortID{Namespace: s.Name.Namespace, Service: s.Name.Name}
	switch {
	case !had && len(s.Ports) > 0:
		e := trace.Event{Kind: trace.ServiceAdded}
		if t.left > 0 {
			e.Count = countEndpoints(s)
		}
		t.record(p.Trace, id, e)
	case had && len(s.Ports) == 0:
		t.record(p.Trace, id, trace.Event{Kind: trace.ServiceRemoved})
	}
}

// countEndpoints returns the number of distinct endpoint addresses and ports of s.
func countEndpoints(s config.Service) int {
	all := map[netip.AddrPort]bool{}
	for _, port := range s.Ports {
		for _, e := range port.Endpoints {
			all[e.Addr] = true
		}
	}
	return len(all)
}

// recordEndpoints records the changes of a front end, unless it is new or removed. same means that its service port
// differs in endpoints only.
func (f *frontEnd) recordEndpoints(before, after *frontend.View, same bool) {
	p := f.proxy
	if p.changeRecorder.now.IsZero() || f.removed || len(before.Port.VIPs) == 0 {
		return // outside of an Apply, or removed or new
	}
	record := func(kind trace.Kind, e *balance.Endpoint) {
		p.changeRecorder.record(p.Trace, f.ID(), trace.Event{Kind: kind, Endpoint: e.Addr, Pod: e.Pod, Reason: conditions(e)})
	}
	if !same {
		p.changeRecorder.record(p.Trace, f.ID(), trace.Event{Kind: trace.ServiceChanged})
	}
	had := make(map[*balance.State]*balance.Endpoint, len(before.All))
	for _, e := range before.All {
		had[e.State] = e
	}
	for _, e := range after.All {
		was := had[e.State]
		delete(had, e.State)
		switch {
		case was == nil:
			record(trace.EndpointAdded, e)
		case conditions(was) != conditions(e):
			record(trace.EndpointChanged, e)
		}
	}
	for _, e := range before.All {
		if had[e.State] != nil {
			record(trace.EndpointRemoved, e)
		}
	}
}

// conditions returns an endpoint's conditions as a short text.
func conditions(e *balance.Endpoint) string {
	switch {
	case e.Ready:
		return "ready"
	case e.Terminating && e.Serving:
		return "terminating"
	}
	return "not ready"
}

// sameButEndpoints reports whether two configurations of a service port differ at most in their endpoints.
func sameButEndpoints(a, b config.ServicePort) bool {
	for _, p := range []*config.ServicePort{&a, &b} {
		p.Endpoints, p.Cluster, p.Internal, p.External = nil, nil, nil, nil
		if t := p.Topology; t != nil && len(t.Keys) > 0 { // Key and Value depend on endpoints, as do hints
			p.Topology = &config.Topology{Keys: t.Keys}
		} else {
			p.Topology = nil
		}
	}
	return reflect.DeepEqual(a, b)
}

// HealthChanged implements balance.Watcher.
func (f *frontEnd) HealthChanged(e *balance.Endpoint, h balance.Health, now time.Time) {
	event := trace.Event{
		Time: now, Kind: trace.EndpointQuarantined, Subject: trace.Subject{Port: f.ID(), Protocol: f.Protocol}, Endpoint: e.Addr, Pod: e.Pod,
	}
	if h.State == balance.Down {
		event.Duration, event.Err = h.Until.Sub(now), h.Err.Error()
	}
	switch {
	case h.State != balance.Down:
		f.Counters.Recoveries.Add(1)
		event.Kind = trace.EndpointRecovered
		event.Reason = map[balance.Kind]string{balance.RecheckPassed: trace.ByProbe, balance.CheckPassed: trace.ByProbes, balance.CheckOff: trace.NoProbes}[h.By]
	case h.By == balance.RecheckFailed:
		event.Kind = trace.EndpointProbed
	case h.By == balance.CheckFailed:
		event.Reason = trace.ByProbes
	case h.UntilProbe:
		event.Reason = trace.ByProbe
		f.proxy.prober.Recheck(f.FrontEnd, e, event.Duration)
	}
	if event.Kind == trace.EndpointQuarantined {
		f.Counters.Quarantines.Add(1)
	}
	f.Trace.Change(&event)
}
