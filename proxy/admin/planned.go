package admin

import (
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/admin/api"
)

// Planned returns the details of a service port that a proxy with these defaults does not serve yet: without
// listeners, rules and connections.
func Planned(port config.ServicePort, d api.Defaults) api.ServicePort {
	o := proxy.Options{IdleTimeout: duration(d.ConnectionIdleSeconds), MaxAge: duration(d.MaxAgeSeconds), UDPIdleTimeout: duration(d.UDPIdleSeconds),
		EndpointLimit: d.EndpointLimit, QueueTimeout: duration(d.QueueSeconds),
		SlowStart: duration(d.SlowStartSeconds), EndpointDrainTimeout: duration(d.DrainSeconds),
		Probe: config.Probe{Interval: duration(d.Probe.IntervalSeconds), Timeout: duration(d.Probe.TimeoutSeconds), Rise: d.Probe.Rise, Fall: d.Probe.Fall}}
	// Older versions of usher have neither.
	_ = o.Probe.Check.UnmarshalText([]byte(d.Probe.Check))
	_ = o.Scheduler.UnmarshalText([]byte(d.Scheduler))
	p := detail(&proxy.PortView{Port: o.WithDefaults(port)}, &o, time.Time{})
	uses := map[config.Endpoint][]string{}
	for _, use := range []struct {
		name      string
		endpoints []config.Endpoint
	}{{"internal", port.Internal}, {"external", port.External}, {"node", port.Cluster}} {
		for _, e := range use.endpoints {
			uses[e] = append(uses[e], use.name)
		}
	}
	for _, e := range port.Endpoints {
		p.Endpoints = append(p.Endpoints, api.Endpoint{Address: e.Addr.String(), Pod: e.Pod, Node: e.Node, Zone: e.Zone,
			Weight: e.Weight.Int(), Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating, UsedFor: uses[e]})
	}
	return p
}

// Defaults returns those of a proxy that is started without flags.
func Defaults() api.Defaults {
	o := proxy.Defaults()
	return defaults(&o)
}

func defaults(o *proxy.Options) api.Defaults {
	return api.Defaults{Scheduler: o.Scheduler.String(), UDPIdleSeconds: o.UDPIdleTimeout.Seconds(),
		ConnectionIdleSeconds: o.IdleTimeout.Seconds(), MaxAgeSeconds: o.MaxAge.Seconds(), Probe: *probe(o.Probe),
		EndpointLimit: o.EndpointLimit, QueueSeconds: o.QueueTimeout.Seconds(),
		SlowStartSeconds: o.SlowStart.Seconds(), DrainSeconds: o.EndpointDrainTimeout.Seconds()}
}

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
