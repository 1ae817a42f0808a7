package show

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/outcome"
)

// Services are the columns for Services. If not all fit, PROBLEM has precedence over settings.
var Services = []Column[api.Service]{
	{Title: "NAMESPACE", Least: 12, Cell: func(s api.Service) string { return Clean(s.Namespace) }},
	{Title: "NAME", Least: 16, Cell: func(s api.Service) string { return Clean(s.Name) }},
	{Title: "STATE", Cell: func(s api.Service) string { return Clean(string(s.State)) }},
	{Title: "SINCE", Some: true, Rank: 3, Cell: func(s api.Service) string { return Since(s.Since, time.Now()) }},
	{Title: "PROBLEM", Wide: true, Some: true, Text: true, Least: 40, Cell: func(s api.Service) string { return dash(problems(s)) }},
	{Title: "VIP", Rank: 2, Cell: func(s api.Service) string { return Few(ofPorts(s, vip)) }},
	{Title: "PORTS", Rank: 3, Cell: func(s api.Service) string { return Few(ofPorts(s, portNumber)) }},
	{Title: "ADDRESS", Some: true, Rank: 1, Cell: func(s api.Service) string { return dash(Few(ofPorts(s, onLoopback))) }},
	{Title: "ENDPOINTS", Rank: 1, Cell: func(s api.Service) string { return ReadyOf(s.Endpoints) }},
	{Title: "ACTIVE", Right: true, Rank: 3, Cell: func(s api.Service) string { return number(s.Totals.Active) }},
	{Title: "CONNECTIONS", Right: true, Rank: 4, Cell: func(s api.Service) string { return number(s.Totals.Accepted) }},
	{Title: "RETRIES", Right: true, Rank: 2, Cell: func(s api.Service) string { return number(s.Totals.Retries) }},
	{Title: "FAILED", Right: true, Rank: 1, Cell: func(s api.Service) string { return number(s.Totals.Failed) }},
	{Title: "NO RESPONSE", Right: true, Some: true, Rank: 2, Cell: func(s api.Service) string { return number(s.Ends[outcome.NoResponse.String()]) }},
	{Title: "CONNECT", Right: true, Wide: true, Some: true, Rank: 5, Cell: func(s api.Service) string { return Connect(s.Latency) }},
	{Title: "FIRST BYTE", Right: true, Wide: true, Some: true, Rank: 5, Cell: func(s api.Service) string { return FirstByte(s.Latency) }},
	{Title: "TO ENDPOINTS", Right: true, Wide: true, Rank: 6, Cell: func(s api.Service) string { return Bytes(float64(s.Totals.BytesToEndpoint)) }},
	{Title: "TO CLIENTS", Right: true, Wide: true, Rank: 6, Cell: func(s api.Service) string { return Bytes(float64(s.Totals.BytesToClient)) }},
	{Title: "QUEUED", Right: true, Wide: true, Some: true, Rank: 5, Cell: func(s api.Service) string { return number(s.Totals.Queued) }},
	{Title: "AFFINITY", Wide: true, Some: true, Rank: 7, Cell: func(s api.Service) string { return orDash(s.AffinitySeconds, Seconds) }},
	{Title: "SETTINGS", Wide: true, Rank: 7, Text: true, Least: 16, Cell: func(s api.Service) string { return dash(strings.Join(ofPorts(s, settings), "; ")) }},
	{Title: "LISTENS ON", Wide: true, Rank: 9, Cell: func(s api.Service) string {
		return dash(Few(ofPorts(s, func(p api.PortSummary) string { return p.Listener })))
	}},
	{Title: "PROXY PROTOCOL", Wide: true, Some: true, Rank: 7, Text: true, Least: 16, Cell: func(s api.Service) string { return dash(Few(proxyProtocols(s))) }},
	{Title: "ENDPOINTS SEE", Wide: true, Some: true, Rank: 9, Text: true, Least: 16, Cell: func(s api.Service) string { return dash(Few(ofPorts(s, seen))) }},
	{Title: "TOPOLOGY", Wide: true, Some: true, Rank: 7, Text: true, Least: 16, Cell: func(s api.Service) string { return dash(Few(ofPorts(s, topology))) }},
}

// ReadyOf returns the number of ready endpoints and of all: "2/3".
func ReadyOf(c api.EndpointCounts) string { return fmt.Sprintf("%d/%d", c.Ready, c.Total) }

// ofPorts returns the texts that say returns for a Service's ports, without duplicates and empty ones.
func ofPorts(s api.Service, say func(api.PortSummary) string) (list []string) {
	for _, p := range s.Ports {
		list = with(list, say(p))
	}
	return list
}

// with appends text to list, unless text is empty or in list: several ports and IP families may have the same.
func with(list []string, text string) []string {
	if text == "" || slices.Contains(list, text) {
		return list
	}
	return append(list, text)
}

// vip returns the address of a VIP, without the port.
func vip(p api.PortSummary) string {
	host, _, _ := net.SplitHostPort(p.VIP) // "" if it has no port
	return host
}

// portNumber returns "80/TCP".
func portNumber(p api.PortSummary) string {
	_, port, err := net.SplitHostPort(p.VIP)
	if err != nil {
		return ""
	}
	return port + "/" + p.Protocol
}

// onLoopback returns the listen address if it is on loopback, as without root: clients then connect there, not to the
// VIP.
func onLoopback(p api.PortSummary) string {
	if at, err := netip.ParseAddrPort(p.Listener); err == nil && at.Addr().IsLoopback() {
		return p.Listener
	}
	return ""
}

// proxyProtocols describes the use of PROXY protocol headers: "v2 to endpoints", "from 10.0.0.0/8".
func proxyProtocols(s api.Service) (list []string) {
	for _, p := range s.Ports {
		if p.ProxyProtocol == nil {
			continue
		}
		if v := p.ProxyProtocol.ToEndpoints; v != "" {
			list = with(list, v+" to endpoints")
		}
		for _, network := range p.ProxyProtocol.From {
			list = with(list, "from "+network)
		}
	}
	return list
}

// seen describes the source address that endpoints of a port see, and why it is the node's. If it may be the client's,
// that depends on the locations of client and endpoint.
func seen(p api.PortSummary) string {
	if p.Source == portal.SourceClient.String() {
		return "client or node"
	}
	return p.SourceText
}

// topology returns the node label that selects endpoints, such as "zone=a", or the labels of which none does.
func topology(p api.PortSummary) string {
	t := p.Topology
	switch {
	case t == nil:
		return ""
	case t.Key == "":
		return "none of " + strings.Join(t.Keys, ", ")
	case t.Value == "":
		return t.Key
	}
	return t.Key + "=" + t.Value
}

func problems(s api.Service) string {
	var list []string
	for _, p := range s.Problems {
		list = with(list, p.Reason+": "+p.Message)
	}
	for _, p := range s.Ports {
		if p.Problem != nil {
			list = with(list, p.Problem.Reason+": "+p.Problem.Message)
		}
		for _, d := range p.Dropped {
			list = with(list, d.Clients+" clients are not served: "+d.Text)
		}
	}
	if len(list) == 0 {
		return s.Trouble
	}
	return strings.Join(list, "; ")
}

// settings returns the settings of a port: "drain-timeout=5m, scheduler=rr".
func settings(p api.PortSummary) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(p.Settings)) {
		list = append(list, Clean(name)+"="+Clean(p.Settings[name]))
	}
	return strings.Join(list, ", ")
}
