package admin

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/trace"
)

// seen is a connection that is open, or one that has ended.
type seen struct {
	life *trace.Life
	end  *trace.Event // nil while it is open
}

// connections answers /connections.
func (a *API) connections(r *http.Request) (any, error) {
	query := r.URL.Query()
	wanted, err := newSelection(query)
	if err != nil {
		return nil, err
	}
	before := uint64(math.MaxUint64)
	if token := query.Get("continue"); token != "" {
		if before, err = strconv.ParseUint(token, 10, 64); err != nil {
			return nil, badQuery("continue", token, "what an answer had in continue")
		}
	}
	end, retried, state := query.Get("end"), flag(query, "retried", false), cmp.Or(query.Get("state"), "open")
	if end != "" && !query.Has("state") {
		state = "ended"
	}
	match := func(l *trace.Life) bool {
		about := l.Subject()
		return wanted.subject(&about) && (!retried || l.Attempts() > 1) && wanted.tried(l)
	}
	var all []seen
	if state != "ended" && end == "" {
		for _, l := range a.proxy.Trace.Open(match) {
			all = append(all, seen{life: l})
		}
	}
	if state != "open" {
		ended := a.proxy.Trace.Ended(math.MaxInt, func(e *trace.Event) bool {
			return (end == "" || string(e.End) == end) && match(e.Life)
		})
		for i := range ended {
			all = append(all, seen{ended[i].Life, &ended[i]})
		}
	}
	out := api.ConnectionList{Page: api.Page{Total: len(all)}, Items: []api.Connection{}}
	slices.SortFunc(all, func(a, b seen) int { return cmp.Compare(b.life.ID, a.life.ID) })
	first, _ := slices.BinarySearchFunc(all, before, func(s seen, before uint64) int {
		if s.life.ID < before {
			return 0
		}
		return -1
	})
	all = all[first:]
	if size := wanted.size; len(all) > size {
		all = all[:size]
		out.Continue = strconv.FormatUint(all[size-1].life.ID, 10)
	}
	now := time.Now()
	for _, s := range all {
		out.Items = append(out.Items, a.tell(s, now))
	}
	return out, nil
}

// tried reports whether the connection has to do with the endpoint that is wanted.
func (s *selection) tried(l *trace.Life) bool {
	return s.anyEndpoint() || slices.ContainsFunc(l.Tried(), func(t trace.Tried) bool { return s.hasEndpoint(t.Endpoint, t.Pod) })
}

// connection answers /connections/{id}.
func (a *API) connection(r *http.Request) (any, error) {
	id, err := strconv.ParseUint(r.PathValue("id"), 10, 64)
	if err != nil {
		return nil, badQuery("id", r.PathValue("id"), "the number of a connection")
	}
	life, end := a.proxy.Trace.Find(id)
	switch {
	case life != nil:
		return a.tell(seen{life: life}, time.Now()), nil
	case end != nil:
		return a.tell(seen{end.Life, end}, time.Now()), nil
	}
	return nil, notFound(fmt.Sprintf("connection %d is not known: there was none, or it has ended and the trace does not have it any more (--trace-events)", id))
}

// sees returns s as the API has it.
func sees(s portal.Seen) api.Sees { return api.Sees{Seen: s.String(), SeenText: s.Text()} }

// tell returns the connection as it is at now.
func (a *API) tell(s seen, now time.Time) api.Connection {
	l, about := s.life, s.life.Subject()
	c := api.Connection{
		ID: about.Conn, Service: about.Port.ServiceName().String(), Port: about.Port.Port, Family: about.Port.Family.String(), Protocol: string(about.Protocol),
		Client: about.Client.String(), VIP: about.VIP.String(), Accepted: l.Began,
		State: api.Connecting, DurationMs: milliseconds(now.Sub(l.Began)), Attempts: []api.Attempt{},
	}
	if about.Via != nil {
		c.Via = about.Via.String()
	}
	for i, t := range l.Tried() {
		c.Attempts = append(c.Attempts, api.Attempt{
			Sees: sees(t.Seen), Number: i + 1, Endpoint: t.Endpoint.String(), Pod: t.Pod, Reason: t.Reason, PassedOver: t.PassedOver,
			StartMs: milliseconds(t.Began), TookMs: milliseconds(t.Took), Result: t.Result.String(), Error: t.Err,
		})
	}
	if t, ok := l.Established(); ok {
		c.State, c.Endpoint, c.Pod, c.ConnectMs = api.Established, t.Endpoint.String(), t.Pod, milliseconds(t.Began+t.Took)
	}
	if s.end == nil {
		c.BytesToEndpoint, c.BytesToClient = a.proxy.Trace.Bytes(l)
		return c
	}
	c.State, c.End, c.Error = api.Ended, string(s.end.End), s.end.Err
	c.DurationMs = milliseconds(s.end.Took)
	c.BytesToEndpoint, c.BytesToClient = s.end.ToEndpoint, s.end.ToClient
	return c
}
