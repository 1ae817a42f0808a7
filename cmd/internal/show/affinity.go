package show

import "github.com/usherproxy/usher/proxy/admin/api"

// Affinity are the columns for session affinity entries.
var Affinity = []Column[api.AffinityEntry]{
	{Title: "NAMESPACE", Cell: func(a api.AffinityEntry) string { return namespaceOf(a.Service) }},
	{Title: "SERVICE", Cell: func(a api.AffinityEntry) string { return nameOf(a.Service, a.Port) }},
	{Title: "CLIENT", Cell: func(a api.AffinityEntry) string { return Clean(a.Client) }},
	{Title: "ENDPOINT", Cell: func(a api.AffinityEntry) string { return Clean(a.Endpoint) }},
	{Title: "POD", Cell: func(a api.AffinityEntry) string { return dash(PodName(a.Pod)) }},
	{Title: "LEFT", Right: true, Cell: func(a api.AffinityEntry) string { return Seconds(a.SecondsLeft) }},
	{Title: "PROTOCOL", Wide: true, Cell: func(a api.AffinityEntry) string { return Clean(a.Protocol) }},
	{Title: "TIMEOUT", Right: true, Wide: true, Cell: func(a api.AffinityEntry) string { return Seconds(a.TimeoutSeconds) }},
}
