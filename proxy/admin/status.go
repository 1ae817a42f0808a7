package admin

import (
	"net/http"
	"strconv"
	"time"

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
		Settings: a.settings(), Conntrack: a.opts.Conntrack, HealthChecks: a.opts.HealthChecks.addresses(),
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

// Keys of api.Status.Settings.
const (
	clientAddress = "client-address"
	accessLog     = "access-log"
)

func (a *API) settings() map[string]string {
	texts := a.opts.Policy.Texts()
	if a.proxy.NodeAddress {
		texts[clientAddress] = "node"
	}
	if a.opts.AccessLog != nil {
		texts[accessLog] = strconv.FormatBool(a.opts.Policy.AccessLog)
	}
	return texts
}
