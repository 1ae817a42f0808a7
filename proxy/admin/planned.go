package admin

import (
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/admin/api"
)

// Planned returns what there is to tell of a service port that nobody serves yet: nothing of
// listeners, rules and connections. What is left to a proxy's own defaults is left out.
func Planned(port config.ServicePort) api.ServicePort {
	p := detail(&proxy.PortView{Port: port}, &proxy.Options{}, time.Time{})
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
			Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating, UsedFor: uses[e]})
	}
	return p
}
