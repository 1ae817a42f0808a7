package show

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/outcome"
)

// Connections are the columns for connections.
var Connections = []Column[api.Connection]{
	{Title: "ID", Right: true, Cell: func(c api.Connection) string { return fmt.Sprint(c.ID) }},
	{Title: "NAMESPACE", Rank: 1, Least: 12, Cell: func(c api.Connection) string { return namespaceOf(c.Service) }},
	{Title: "SERVICE", Least: 16, Cell: func(c api.Connection) string { return nameOf(c.Service, c.Port) }},
	{Title: "CLIENT", Rank: 1, Cell: func(c api.Connection) string { return Clean(c.Client) }},
	{Title: "ENDPOINT", Cell: func(c api.Connection) string { return dash(c.Endpoint) }},
	{Title: "POD", Rank: 3, Least: 12, Cell: func(c api.Connection) string { return dash(PodName(c.Pod)) }},
	{Title: "STATE", Cell: ConnectionState},
	{Title: "ATTEMPTS", Right: true, Rank: 2, Cell: func(c api.Connection) string { return number(int64(len(c.Attempts))) }},
	{Title: "DURATION", Right: true, Rank: 2, Cell: func(c api.Connection) string { return Milliseconds(c.DurationMs) }},
	{Title: "TO ENDPOINT", Right: true, Rank: 3, Cell: func(c api.Connection) string { return Bytes(float64(c.BytesToEndpoint)) }},
	{Title: "TO CLIENT", Right: true, Rank: 3, Cell: func(c api.Connection) string { return Bytes(float64(c.BytesToClient)) }},
	{Title: "PROTOCOL", Wide: true, Rank: 7, Cell: func(c api.Connection) string { return Clean(c.Protocol) }},
	{Title: "VIA", Wide: true, Some: true, Rank: 8, Cell: func(c api.Connection) string { return dash(c.Via) }},
	{Title: "VIP", Wide: true, Rank: 6, Cell: func(c api.Connection) string { return Clean(c.VIP) }},
	{Title: "CONNECT TIME", Right: true, Wide: true, Rank: 5, Cell: func(c api.Connection) string { return orDash(c.ConnectMs, Milliseconds) }},
	{Title: "FIRST BYTE", Right: true, Wide: true, Rank: 5, Cell: func(c api.Connection) string { return orDash(c.FirstByteMs, Milliseconds) }},
	{Title: "OUTCOME", Wide: true, Some: true, Rank: 4, Cell: func(c api.Connection) string {
		if c.End == "" && slices.Equal(c.Outcomes, []string{api.OutcomeOK}) {
			return "-" // not known yet
		}
		return Clean(strings.Join(c.Outcomes, ","))
	}},
	{Title: "ACCEPTED", Wide: true, Rank: 4, Cell: func(c api.Connection) string { return c.Accepted.Local().Format("15:04:05.000") }},
	{Title: "ERROR", Wide: true, Some: true, Rank: 3, Text: true, Least: 24, Cell: func(c api.Connection) string { return dash(c.Error) }},
}

// Reaches describes how far back a list of connections reaches.
func Reaches(r api.Reaches, now time.Time) string {
	last := func(t time.Time) string { return Seconds(now.Sub(t).Seconds()) }
	if r.Amiss.Before(r.All) {
		return fmt.Sprintf("Includes connections that ended in the last %s, and failed, retried, slow or unanswered ones of the last %s.", last(r.All), last(r.Amiss))
	}
	return fmt.Sprintf("Includes connections that ended in the last %s.", last(r.All))
}

// Saved says how many of the open connections would survive a crash of usher.
func Saved(saved, open int64) string {
	return fmt.Sprintf("The keeper has copies of the sockets of %d of all %d connections. Most of these would survive a crash of usher.", saved, open)
}

// ConnectionState returns the state of a connection, or how it ended.
func ConnectionState(c api.Connection) string {
	if c.End != "" {
		return Clean(c.End)
	}
	return Clean(string(c.State))
}

// ConnectionStyle is yellow for a connection that waits for an endpoint, green for an open one, and red for one that
// ended with a fault.
func ConnectionStyle(c api.Connection) Style {
	switch {
	case c.State == api.Connecting:
		return Care
	case c.State == api.Established, c.State == api.Sending:
		return Good
	case NormalEnd(c.End):
		return Plain
	}
	return Bad
}

// NormalEnd reports whether a connection that ended with this code had no fault and got a response.
func NormalEnd(code string) bool {
	o := outcome.Named(code)
	return o != outcome.Open && o != outcome.NoResponse && o.Fault() == outcome.FaultNone
}

// namespaceOf and nameOf split "namespace/name". nameOf appends ":" and port, unless port is empty.
func namespaceOf(service string) string {
	namespace, _, _ := strings.Cut(service, "/")
	return Clean(namespace)
}

func nameOf(service, port string) string {
	_, name, _ := strings.Cut(service, "/")
	if port != "" {
		name += ":" + port
	}
	return Clean(name)
}
