package top

import (
	"fmt"
	"time"

	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/proxy/admin/api"
)

// serviceSorts are the sort orders of Services. The usher instance sorts.
var serviceSorts = []struct{ name, sort string }{
	{"by name", api.SortName},
	{"the most open connections first", api.SortActive},
	{"the most connections first", api.SortConnections},
	{"the most retries first", api.SortRetries},
	{"the most failed first", api.SortFailed},
	{"the most bytes first", api.SortBytes},
}

// serviceRow is a Service with its rates.
type serviceRow struct {
	api.Service
	rate
}

var serviceColumns = []show.Column[serviceRow]{
	{Title: "SERVICE", Least: 20, Cell: func(r serviceRow) string { return show.Clean(serviceKey(r.Service)) }},
	{Title: "STATE", Cell: func(r serviceRow) string { return stateStyle(r.State).Text(show.Clean(string(r.State))) }},
	{Title: "SINCE", Rank: 4, Cell: func(r serviceRow) string { return show.Since(r.Since, time.Now()) }},
	{Title: "READY", Right: true, Cell: func(r serviceRow) string { return show.ReadyOf(r.Endpoints) }},
	{Title: "OPEN", Right: true, Rank: 3, Cell: func(r serviceRow) string { return fmt.Sprint(r.Totals.Active) }},
	{Title: "NEW/S", Right: true, Rank: 1, Cell: func(r serviceRow) string { return show.Rate(r.accepted) }},
	{Title: "RETRY/S", Right: true, Rank: 2, Cell: func(r serviceRow) string { return styledIf(r.retries > 0, show.Care, show.Rate(r.retries)) }},
	{Title: "FAIL/S", Right: true, Rank: 1, Cell: func(r serviceRow) string { return styledIf(r.failed > 0, show.Bad, show.Rate(r.failed)) }},
	{Title: "P99", Right: true, Rank: 4, Cell: func(r serviceRow) string { return show.P99(r.Latency) }},
	{Title: "BYTES/S", Right: true, Rank: 5, Cell: func(r serviceRow) string { return show.Bytes(r.bytes) }},
	{Title: "CONNECTIONS", Right: true, Rank: 5, Cell: func(r serviceRow) string { return fmt.Sprint(r.Totals.Accepted) }},
	{Title: "RETRIES", Right: true, Rank: 5, Cell: func(r serviceRow) string { return fmt.Sprint(r.Totals.Retries) }},
	{Title: "FAILED", Right: true, Rank: 4, Cell: func(r serviceRow) string { return fmt.Sprint(r.Totals.Failed) }},
	{Title: "BYTES", Right: true, Rank: 6, Cell: func(r serviceRow) string {
		return show.Bytes(float64(r.Totals.BytesToEndpoint + r.Totals.BytesToClient))
	}},
}

func serviceKey(s api.Service) string { return s.Namespace + "/" + s.Name }

func serviceKeys(services []api.Service) (keys []string) {
	for _, s := range services {
		keys = append(keys, serviceKey(s))
	}
	return keys
}

func stateStyle(s api.ServiceState) show.Style {
	switch s {
	case api.ServiceOK:
		return show.Good
	case api.ServiceDegraded:
		return show.Care
	case api.ServiceNoEndpoints, api.ServiceNoLocalEndpointsExternal:
		return show.Quiet
	}
	return show.Bad
}

func styledIf(yes bool, style show.Style, s string) string {
	if yes {
		return style.Text(s)
	}
	return s
}

// serviceLines returns the table of Services, titles first.
func (m Model) serviceLines(width int) []string {
	var rows []serviceRow
	for _, s := range m.services {
		rows = append(rows, serviceRow{s, m.rates.services[serviceKey(s)]})
	}
	return show.Fit(serviceColumns, rows, width)
}
