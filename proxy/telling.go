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

// maxTold is how many changes of one Apply are told one by one, so that a change
// of everything does not push out what was told before.
const maxTold = 100

// telling tells changes of the configuration to the trace. It is guarded by
// Proxy.mu.
type telling struct {
	now     time.Time // zero outside of an Apply
	left    int       // that may be told one by one
	omitted int       // that were not
}

// begin begins the changes of one Apply.
func (t *telling) begin() { t.now, t.left, t.omitted = time.Now(), maxTold, 0 }

// end ends them.
func (t *telling) end(log *trace.Log) {
	if t.omitted > 0 {
		log.Change(&trace.Event{Kind: trace.MoreChanges, Time: t.now, Count: t.omitted})
	}
	*t = telling{}
}

// tell tells a change, if that is still to be told by itself.
func (t *telling) tell(log *trace.Log, id config.PortID, e trace.Event) {
	if t.left == 0 {
		t.omitted++
		return
	}
	t.left--
	e.Time, e.Subject = t.now, &trace.Subject{Port: id}
	log.Change(&e)
}

// service tells whether s comes or goes, before it does.
func (t *telling) service(p *Proxy, s config.Service) {
	_, had := p.services[s.Name]
	id := config.PortID{Namespace: s.Name.Namespace, Service: s.Name.Name}
	switch {
	case !had && len(s.Ports) > 0:
		e := trace.Event{Kind: trace.ServiceAdded}
		if t.left > 0 {
			e.Count = countEndpoints(s)
		}
		t.tell(p.Trace, id, e)
	case had && len(s.Ports) == 0:
		t.tell(p.Trace, id, trace.Event{Kind: trace.ServiceRemoved})
	}
}

// countEndpoints returns how many endpoints s has, each address and port once.
func countEndpoints(s config.Service) int {
	all := map[netip.AddrPort]bool{}
	for _, port := range s.Ports {
		for _, e := range port.Endpoints {
			all[e.Addr] = true
		}
	}
	return len(all)
}

// tellEndpoints tells what is different in a front end that goes on. same says that its service
// port differs in endpoints only.
func (f *frontEnd) tellEndpoints(before, after *frontend.View, same bool) {
	p := f.proxy
	if p.telling.now.IsZero() || len(f.owned) == 0 {
		return // it comes or goes
	}
	tell := func(kind trace.Kind, e *balance.Endpoint) {
		p.telling.tell(p.Trace, f.ID(), trace.Event{Kind: kind, Endpoint: e.Addr, Pod: e.Pod, Reason: conditions(e)})
	}
	if !same {
		p.telling.tell(p.Trace, f.ID(), trace.Event{Kind: trace.ServiceChanged})
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
			tell(trace.EndpointAdded, e)
		case conditions(was) != conditions(e):
			tell(trace.EndpointChanged, e)
		}
	}
	for _, e := range before.All {
		if had[e.State] != nil {
			tell(trace.EndpointRemoved, e)
		}
	}
}

// conditions says in a word whether an endpoint is used.
func conditions(e *balance.Endpoint) string {
	switch {
	case e.Ready:
		return "ready"
	case e.Terminating && e.Serving:
		return "terminating"
	}
	return "not ready"
}

// sameButEndpoints reports whether two configurations of a service port differ in
// their endpoints at the most.
func sameButEndpoints(a, b config.ServicePort) bool {
	for _, p := range []*config.ServicePort{&a, &b} {
		p.Endpoints, p.Cluster, p.Internal, p.External = nil, nil, nil, nil
	}
	return reflect.DeepEqual(a, b)
}

// HealthChanged implements balance.Watcher.
func (f *frontEnd) HealthChanged(e *balance.Endpoint, h balance.Health, now time.Time) {
	event := trace.Event{Time: now}
	if h.State != balance.Down {
		f.Counters.Recoveries.Add(1)
		event.Kind = trace.EndpointRecovered
		event.Reason = map[balance.Kind]string{balance.RecheckPassed: trace.ByProbe, balance.CheckPassed: trace.ByProbes, balance.CheckOff: trace.NoProbes}[h.By]
		f.tellEndpoint(event, e)
		return
	}
	event.Kind, event.Took, event.Err = trace.EndpointQuarantined, h.Until.Sub(now), h.Err.Error()
	switch {
	case h.By == balance.RecheckFailed:
		event.Kind = trace.EndpointProbed
	case h.By == balance.CheckFailed:
		event.Reason = trace.ByProbes
	case h.Probed:
		event.Reason = trace.ByProbe
		f.proxy.prober.Recheck(f.FrontEnd, e, event.Took)
	}
	if event.Kind == trace.EndpointQuarantined {
		f.Counters.Quarantines.Add(1)
	}
	f.tellEndpoint(event, e)
}

// tellEndpoint tells what has become of an endpoint.
func (f *frontEnd) tellEndpoint(told trace.Event, e *balance.Endpoint) {
	told.Subject = &trace.Subject{Port: f.ID(), Protocol: f.Protocol}
	told.Endpoint, told.Pod = e.Addr, e.Pod
	f.Trace.Change(&told)
}
