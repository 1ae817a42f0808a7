package admin

import (
	"net/http"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/outcome"
)

func (a *API) status(*http.Request) (any, error) {
	s, sync := a.proxy.Stats(), a.proxy.SyncStatus()
	out := api.Status{
		Instance: a.instance, Version: a.opts.Version, Started: a.started, Now: time.Now(),
		PortalMode: a.proxy.Portal.Mode(), Via: a.opts.Via, Source: a.opts.Source, Demo: a.opts.Demo,
		Services: s.Services, ServicePorts: s.Ports,
		Connections:      api.Limited{Now: s.Open, Limit: s.Limit},
		SavedConnections: s.Saved,
		UDPSessions:      api.Limited{Now: s.Sessions.Open, Limit: s.Sessions.Limit},
		AffinityClients:  s.AffinityClients,
		Subscribers:      api.Limited{Now: a.subscribers.now.Load(), Limit: MaxSubscribers},
		Totals:           totals(s.All),
		Ends:             map[string]int64{},
		LastQueued:       sync.LastQueued, LastApplied: sync.LastApplied, Restarts: a.opts.Health.Restarts,
		Repairs:  s.Repaired,
		Defaults: defaults(&a.proxy.Options), Conntrack: a.opts.Conntrack, HealthChecks: a.opts.HealthChecks.addresses(),
	}
	open := a.proxy.AddOpenBytes(nil)
	out.Totals.BytesToEndpoint += open.ToEndpoint
	out.Totals.BytesToClient += open.ToClient
	var total int
	out.Problems, total, out.Attention = a.problems(&s, out.Now)
	out.ProblemsOmitted, out.Since = total-len(out.Problems), a.since()
	for _, ends := range []map[outcome.Outcome]int64{s.Ends, s.Sessions.Ends} {
		for end, n := range ends {
			out.Ends[end.String()] += n
		}
	}
	return out, nil
}

func totals(t frontend.Totals) api.Totals {
	return api.Totals{
		Active: t.Active, Queued: t.Queued, Accepted: t.Accepted, Established: t.Established, Failed: t.Failed,
		Attempts: t.Attempts, AttemptsFailed: t.AttemptsFailed, Retries: t.Retries,
		BytesToEndpoint: t.ToEndpoint, BytesToClient: t.ToClient,
	}
}

func (a *API) ends(*http.Request) (any, error) {
	list := api.EndList{}
	for o := outcome.ClientClosed; o < outcome.Outcomes; o++ {
		list.Items = append(list.Items, api.End{Code: o.String(), Meaning: o.Meaning(), Fault: string(o.Fault())})
	}
	return list, nil
}

// Defaults returns the defaults of a proxy that is started without flags.
func Defaults() api.Defaults {
	o := proxy.Defaults()
	return defaults(&o)
}

func defaults(o *proxy.Options) api.Defaults {
	return api.Defaults{Scheduler: o.Scheduler.String(), UDPIdleSeconds: o.UDPIdleTimeout.Seconds(),
		ConnectionIdleSeconds: o.IdleTimeout.Seconds(), MaxAgeSeconds: o.MaxAge.Seconds(), Probe: *probe(o.Probe),
		EndpointLimit: o.EndpointLimit, QueueSeconds: o.QueueTimeout.Seconds(),
		SlowStartSeconds: o.SlowStart.Seconds(), DrainSeconds: o.EndpointDrainTimeout.Seconds(),
		AccessLog: map[config.Switch]string{config.On: "on", config.Off: "off"}[o.AccessLog], NodeAddress: o.NodeAddress}
}

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
