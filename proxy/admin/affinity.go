package admin

import (
	"net/http"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/affinity"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/balance"
)

func (a *API) affinity(r *http.Request) (any, error) {
	query := r.URL.Query()
	wanted, err := newSelection(query)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	type entry struct {
		affinity.Entry
		view *proxy.PortView
		pod  string
	}
	var all []entry
	views := a.proxy.Inspect(func(s types.NamespacedName) bool {
		return wanted.service == types.NamespacedName{} || s == wanted.service
	})
	for i := range views {
		v := &views[i]
		entries := v.Affinity.Entries(now)
		if len(entries) == 0 {
			continue
		}
		pods := make(map[netip.AddrPort]string, len(v.Endpoints))
		for _, e := range v.Endpoints {
			pods[e.Addr] = e.Pod
		}
		for _, e := range entries {
			if wanted.hasClient(e.Client) && wanted.hasEndpoint(e.Endpoint, pods[e.Endpoint]) {
				all = append(all, entry{e, v, pods[e.Endpoint]})
			}
		}
	}
	out := api.AffinityList{Page: api.Page{Total: len(all)}, Items: []api.AffinityEntry{}}
	if all, out.Continue, err = offset(all, wanted.size, query.Get("continue")); err != nil {
		return nil, err
	}
	for _, e := range all {
		out.Items = append(out.Items, affinityEntry(e.Entry, e.view, e.pod))
	}
	return out, nil
}

func affinityEntry(e affinity.Entry, v *proxy.PortView, pod string) api.AffinityEntry {
	id := v.Port.ID
	return api.AffinityEntry{
		Service: id.ServiceName().String(), Port: id.Port, Family: id.Family.String(), Protocol: string(v.Port.Protocol),
		Client: e.Client.String(), Endpoint: e.Endpoint.String(), Pod: pod,
		SecondsLeft: e.Left.Seconds(), TimeoutSeconds: v.Port.AffinityTimeout.Seconds(),
	}
}

// podOf returns the Pod behind an address.
func podOf(endpoints []*balance.Endpoint, at netip.AddrPort) string {
	if i := slices.IndexFunc(endpoints, func(e *balance.Endpoint) bool { return e.Addr == at }); i >= 0 {
		return endpoints[i].Pod
	}
	return ""
}
