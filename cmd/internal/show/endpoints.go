package show

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// PortEndpoint is an endpoint with its service port.
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
	{Title: "NAMESPACE", Least: 12, Cell: func(e PortEndpoint) string { return Clean(e.Namespace) }},
	{Title: "SERVICE", Least: 16, Cell: func(e PortEndpoint) string { return Clean(e.Service) }},
	{Title: "PORT", Rank: 3, Cell: func(e PortEndpoint) string { return dash(e.Port) }},
	{Title: "ENDPOINT", Cell: func(e PortEndpoint) string { return Clean(e.Address) }},
	{Title: "POD", Rank: 1, Least: 12, Cell: func(e PortEndpoint) string { return dash(PodName(e.Pod)) }},
	{Title: "STATE", Cell: func(e PortEndpoint) string { return state(e.Endpoint) }},
	{Title: "SINCE", Some: true, Rank: 2, Cell: func(e PortEndpoint) string { return Since(e.Since, time.Now()) }},
	{Title: "ACTIVE", Right: true, Rank: 2, Cell: func(e PortEndpoint) string { return activeOf(e) }},
	{Title: "CONNECTED", Right: true, Rank: 3, Cell: func(e PortEndpoint) string { return number(e.Connected) }},
	{Title: "FAILED", Right: true, Rank: 1, Cell: func(e PortEndpoint) string { return number(e.Failed) }},
	{Title: "NO RESPONSE", Right: true, Some: true, Rank: 1, Cell: func(e PortEndpoint) string { return number(e.NoResponse) }},
	{Title: "CONNECT", Right: true, Rank: 4, Cell: func(e PortEndpoint) string { return Connect(e.Latency) }},
	{Title: "FIRST BYTE", Right: true, Rank: 4, Cell: func(e PortEndpoint) string { return FirstByte(e.Latency) }},
	{Title: "QUARANTINE", Rank: 1, Text: true, Least: 20, Cell: func(e PortEndpoint) string { return QuarantineCell(e.Quarantine) }},
	{Title: "NOT USED", Some: true, Rank: 2, Text: true, Least: 16, Cell: func(e PortEndpoint) string { return dash(e.NotUsed) }},
	{Title: "PROTOCOL", Wide: true, Rank: 6, Cell: func(e PortEndpoint) string { return Clean(e.Protocol) }},
	{Title: "NODE", Wide: true, Some: true, Rank: 5, Least: 12, Cell: func(e PortEndpoint) string { return dash(e.Node) }},
	{Title: "ZONE", Wide: true, Some: true, Rank: 6, Least: 8, Cell: func(e PortEndpoint) string { return dash(e.Zone) }},
	{Title: "WEIGHT", Right: true, Wide: true, Rank: 6, Cell: func(e PortEndpoint) string { return number(int64(e.Weight)) }},
	{Title: "USED FOR", Wide: true, Rank: 7, Text: true, Least: 12, Cell: func(e PortEndpoint) string { return dash(strings.Join(e.UsedFor, ",")) }},
	{Title: "TO ENDPOINT", Right: true, Wide: true, Rank: 5, Cell: func(e PortEndpoint) string { return Bytes(float64(e.BytesToEndpoint)) }},
	{Title: "TO CLIENTS", Right: true, Wide: true, Rank: 5, Cell: func(e PortEndpoint) string { return Bytes(float64(e.BytesToClient)) }},
}

// Connect returns the p50 and p99 of the time until clients' connections were established, over the last minutes. It
// returns "-" if there were none.
func Connect(l *api.Latency) string {
	if l == nil {
		return "-"
	}
	return both(l.ConnectP50Ms, l.ConnectP99Ms)
}

// FirstByte is Connect for the time until the endpoint's first byte.
func FirstByte(l *api.Latency) string {
	if l == nil || l.FirstByteP99Ms == 0 {
		return "-"
	}
	return both(l.FirstByteP50Ms, l.FirstByteP99Ms)
}

// P99 returns the p99 of the time to first byte over the last minutes or, if no byte was received, of the time to
// connect.
func P99(l *api.Latency) string {
	if l == nil {
		return "-"
	}
	return Milliseconds(cmp.Or(l.FirstByteP99Ms, l.ConnectP99Ms))
}

// both returns "0.24/253 ms" for 0.24 and 253 milliseconds.
func both(p50, p99 float64) string {
	low, high := Milliseconds(p50), Milliseconds(p99)
	if strings.HasSuffix(high, " ms") {
		low = strings.TrimSuffix(low, " ms")
	}
	return low + "/" + high
}

// activeOf returns the number of open connections of an endpoint, or "3/10" if it has a limit of 10.
func activeOf(e PortEndpoint) string {
	if e.Limit == 0 {
		return number(e.Active)
	}
	return fmt.Sprintf("%d/%d", e.Active, e.Limit)
}

// state returns "ready" or, during slow start, "ready, 40% of its share".
func state(e api.Endpoint) string {
	if e.Share == 0 {
		return Clean(string(e.State))
	}
	return fmt.Sprintf("%s, %.0f%% of its share", Clean(string(e.State)), 100*e.Share)
}

// QuarantineCell returns the remaining time and the cause: "another 7s: connection refused" or, for a probed endpoint,
// "probe in 7s: connection refused". It returns "-" for an endpoint that is not in quarantine.
func QuarantineCell(q *api.Quarantine) string {
	if q == nil {
		return "-"
	}
	left := Seconds(q.SecondsLeft)
	how := "another " + left
	switch {
	case q.Probed && left == "0s":
		how = "probe now"
	case q.Probed:
		how = "probe in " + left
	case left == "0s":
		how = "ends now"
	}
	return how + ": " + Clean(q.Cause)
}

// PodName returns the name of a Pod without its namespace, which is the Service's.
func PodName(pod string) string {
	if _, name, ok := strings.Cut(pod, "/"); ok {
		return name
	}
	return pod
}
