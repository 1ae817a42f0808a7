package show

import (
	"fmt"
	"strings"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// PortEndpoint is an endpoint with the service port that it belongs to.
type PortEndpoint struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"` // its name
	Port      string `json:"port,omitempty"`
	Protocol  string `json:"protocol"`
	api.Endpoint
}

// PortEndpoints returns the endpoints of all ports of a Service.
func PortEndpoints(s api.ServiceDetail) (list []PortEndpoint) {
	for _, p := range s.Details {
		for _, e := range p.Endpoints {
			list = append(list, PortEndpoint{Namespace: s.Namespace, Service: s.Name, Port: p.Name, Protocol: p.Protocol, Endpoint: e})
		}
	}
	return list
}

// Endpoints are the columns for endpoints.
var Endpoints = []Column[PortEndpoint]{
	{Title: "NAMESPACE", Cell: func(e PortEndpoint) string { return Clean(e.Namespace) }},
	{Title: "SERVICE", Cell: func(e PortEndpoint) string { return Clean(e.Service) }},
	{Title: "PORT", Cell: func(e PortEndpoint) string { return dash(e.Port) }},
	{Title: "ENDPOINT", Cell: func(e PortEndpoint) string { return Clean(e.Address) }},
	{Title: "POD", Cell: func(e PortEndpoint) string { return dash(podName(e.Pod)) }},
	{Title: "STATE", Cell: func(e PortEndpoint) string { return state(e.Endpoint) }},
	{Title: "ACTIVE", Right: true, Cell: func(e PortEndpoint) string { return activeOf(e) }},
	{Title: "CONNECTED", Right: true, Cell: func(e PortEndpoint) string { return number(e.Connected) }},
	{Title: "FAILED", Right: true, Cell: func(e PortEndpoint) string { return number(e.Failed) }},
	{Title: "QUARANTINE", Cell: func(e PortEndpoint) string { return QuarantineCell(e.Quarantine) }},
	{Title: "PROTOCOL", Wide: true, Cell: func(e PortEndpoint) string { return Clean(e.Protocol) }},
	{Title: "NODE", Wide: true, Cell: func(e PortEndpoint) string { return dash(e.Node) }},
	{Title: "ZONE", Wide: true, Cell: func(e PortEndpoint) string { return dash(e.Zone) }},
	{Title: "WEIGHT", Right: true, Wide: true, Cell: func(e PortEndpoint) string { return number(int64(e.Weight)) }},
	{Title: "USED FOR", Wide: true, Cell: func(e PortEndpoint) string { return dash(strings.Join(e.UsedFor, ",")) }},
	{Title: "TO ENDPOINT", Right: true, Wide: true, Cell: func(e PortEndpoint) string { return Bytes(float64(e.BytesToEndpoint)) }},
	{Title: "TO CLIENTS", Right: true, Wide: true, Cell: func(e PortEndpoint) string { return Bytes(float64(e.BytesToClient)) }},
}

// activeOf returns how many connections an endpoint has, and "3/10" if it may have no more than 10.
func activeOf(e PortEndpoint) string {
	if e.Limit == 0 {
		return number(e.Active)
	}
	return fmt.Sprintf("%d/%d", e.Active, e.Limit)
}

// state returns "ready" or, for one that is new, "ready, 40% of its share".
func state(e api.Endpoint) string {
	if e.Share == 0 {
		return Clean(string(e.State))
	}
	return fmt.Sprintf("%s, %.0f%% of its share", Clean(string(e.State)), 100*e.Share)
}

// QuarantineCell returns "another 7s: connection refused" or, for one that is probed,
// "probe in 7s: connection refused", or "-".
func QuarantineCell(q *api.Quarantine) string {
	if q == nil {
		return "-"
	}
	how := "another "
	if q.Probed {
		how = "probe in "
	}
	return how + Seconds(q.SecondsLeft) + ": " + Clean(q.Cause)
}

// podName returns the name of a Pod without its namespace, which is the Service's.
func podName(pod string) string {
	if _, name, ok := strings.Cut(pod, "/"); ok {
		return name
	}
	return pod
}
