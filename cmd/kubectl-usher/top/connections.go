package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/proxy/admin/api"
)

type connection = api.Connection

// connectionSorts are the sort orders of connections. The usher instance sorts.
var connectionSorts = []struct{ name, sort string }{
	{"the newest first", api.SortNewest},
	{"the most attempts first", api.SortAttempts},
	{"the longest first", api.SortDuration},
	{"the most bytes first", api.SortBytes},
}

var connectionColumns = []show.Column[connection]{
	{Title: "#", Right: true, Cell: func(c connection) string { return fmt.Sprint(c.ID) }},
	{Title: "STATE", Cell: func(c connection) string { return show.ConnectionStyle(c).Text(show.ConnectionState(c)) }},
	{Title: "TRIES", Right: true, Rank: 1, Cell: func(c connection) string {
		return styledIf(len(c.Attempts) > 1, show.Care, fmt.Sprint(len(c.Attempts)))
	}},
	{Title: "DURATION", Right: true, Rank: 2, Cell: func(c connection) string { return show.Milliseconds(c.DurationMs) }},
	{Title: "SERVICE", Rank: 1, Least: 16, Cell: func(c connection) string { return show.Clean(c.Service) }},
	{Title: "CLIENT", Rank: 2, Cell: func(c connection) string { return show.Clean(c.Client) }},
	{Title: "ENDPOINT", Rank: 3, Cell: func(c connection) string { return cmp.Or(show.Clean(c.Endpoint), "-") }},
	{Title: "POD", Rank: 4, Least: 12, Cell: func(c connection) string { return cmp.Or(show.Clean(show.PodName(c.Pod)), "-") }},
	{Title: "TO ENDPOINT", Right: true, Rank: 5, Cell: func(c connection) string { return show.Bytes(float64(c.BytesToEndpoint)) }},
	{Title: "TO CLIENT", Right: true, Rank: 5, Cell: func(c connection) string { return show.Bytes(float64(c.BytesToClient)) }},
}

func connectionKeys(list []connection) (keys []string) {
	for _, c := range list {
		keys = append(keys, strconv.FormatUint(c.ID, 10))
	}
	return keys
}

// visibleConnections returns the connections that match the filter.
func (m Model) visibleConnections() []connection {
	return slices.DeleteFunc(slices.Clone(m.connections), func(c connection) bool {
		return !strings.Contains(strings.ToLower(c.Service+" "+c.Client+" "+c.Endpoint+" "+c.Pod+" "+show.ConnectionState(c)), strings.ToLower(m.filter))
	})
}

// connectionLines returns the table of connections, titles first.
func (m Model) connectionLines(width int) []string {
	rows := m.visibleConnections()
	columns := connectionColumns
	if m.service != "" {
		columns = slices.DeleteFunc(slices.Clone(columns), func(c show.Column[connection]) bool { return c.Title == "SERVICE" }) // it is the same for all
	}
	return show.Fit(columns, rows, width)
}
