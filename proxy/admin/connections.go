package admin

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/trace"
)

// seen is an open connection, or an ended one.
type seen struct {
	life *conn.Record
	end  *trace.Event // nil while it is open
}

// lasted returns its duration until the end, or until now.
func (s seen) lasted(now time.Time) time.Duration {
	if s.end != nil {
		return s.end.Duration
	}
	return now.Sub(s.life.Start)
}

// connectionSelection selects connections. Zero fields match all.
type connectionSelection struct {
	selection
	state        string
	retried      bool
	outcomes     []string
	ends         []string
	slower, last time.Duration
}

func newConnectionSelection(query url.Values) (s connectionSelection, err error) {
	if s.selection, err = newSelection(query); err != nil {
		return s, err
	}
	if s.outcomes, err = oneOfEach("outcome", query.Get("outcome"), conn.FlagWords()); err != nil {
		return s, err
	}
	if s.ends, err = oneOfEach("end", query.Get("end"), outcome.Words()); err != nil {
		return s, err
	}
	if s.slower, err = interval(query, "slowerThan"); err != nil {
		return s, err
	}
	if s.last, err = interval(query, "last"); err != nil {
		return s, err
	}
	s.retried = flag(query, "retried", false)
	switch s.state = query.Get("state"); {
	case s.state != "":
	case s.ends != nil || s.last > 0:
		s.state = stateEnded
	case s.outcomes != nil || s.slower > 0 || s.retried:
		s.state = stateAll
	default:
		s.state = stateOpen
	}
	return s, nil
}

// The values of the parameter state.
const (
	stateOpen  = "open"
	stateEnded = "ended"
	stateAll   = "all"
)

// matches reports whether a connection is selected, in its state at now.
func (s *connectionSelection) matches(c seen, now time.Time) bool {
	about := trace.SubjectOf(c.life)
	if !s.subject(&about) || !s.tried(c.life) || s.retried && c.life.Tries() < 2 || s.slower > 0 && c.life.Waited(c.lasted(now)) <= s.slower {
		return false
	}
	if c.end == nil {
		return s.ends == nil && s.last == 0 && s.hasOutcome(c.life.Flags(c.lasted(now), outcome.Open))
	}
	return (s.ends == nil || slices.Contains(s.ends, c.end.End.Outcome.String())) && (s.last == 0 || now.Sub(c.end.Time) <= s.last) && s.hasOutcome(c.end.Flags)
}

func (s *connectionSelection) hasOutcome(f conn.Flags) bool {
	return s.outcomes == nil || slices.ContainsFunc(f.Words(), func(word string) bool { return slices.Contains(s.outcomes, word) })
}

// all returns the selected connections, newest first.
func (s *connectionSelection) all(log *trace.Log, now time.Time) (all []seen) {
	var open []*conn.Record
	if s.state != stateEnded {
		open = log.Open(func(l *conn.Record) bool { return s.matches(seen{life: l}, now) })
	}
	if s.state != stateOpen {
		ended := log.Ended(math.MaxInt, func(e *trace.Event) bool { return s.matches(seen{e.Record, e}, now) })
		for i := range ended {
			all = append(all, seen{ended[i].Record, &ended[i]})
		}
	}
	for _, l := range open {
		all = append(all, seen{life: l}) // if it has ended since, the sort and CompactFunc keep the event of its end
	}
	slices.SortStableFunc(all, func(a, b seen) int { return cmp.Compare(b.life.ID, a.life.ID) })
	return slices.CompactFunc(all, func(a, b seen) bool { return a.life.ID == b.life.ID })
}

func (a *API) connections(r *http.Request) (any, error) {
	query, now, log := r.URL.Query(), time.Now(), a.proxy.Trace
	wanted, err := newConnectionSelection(query)
	if err != nil {
		return nil, err
	}
	all := wanted.all(log, now)
	if name := wanted.service; len(all) == 0 && name.Name != "" && len(a.proxy.InspectService(name)) == 0 && len(a.reportsOf()[name]) == 0 {
		return nil, notFound(fmt.Sprintf("no Service %s is served, and usher has no record of its connections", name))
	}
	out := api.ConnectionList{Page: api.Page{Total: len(all)}, Items: []api.Connection{}}
	if wanted.state != stateOpen {
		reaches := log.Reaches(wanted.servicePort)
		out.Reaches = &api.Reaches{All: reaches.All, Amiss: reaches.Amiss}
	}
	if by := connectionKeys[query.Get("sort")]; by != nil {
		slices.SortStableFunc(all, func(x, y seen) int { return cmp.Compare(by(a, y, now), by(a, x, now)) })
		all, out.Continue, err = offset(all, wanted.size, query.Get("continue"))
	} else {
		all, out.Continue, err = older(all, wanted.size, query.Get("continue"))
	}
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		out.Items = append(out.Items, a.describe(s, now))
	}
	return out, nil
}

// connectionKeys are the sort keys of connections other than their age.
var connectionKeys = map[string]func(a *API, s seen, now time.Time) int64{
	api.SortAttempts: func(_ *API, s seen, _ time.Time) int64 { return int64(s.life.Tries()) },
	api.SortDuration: func(_ *API, s seen, now time.Time) int64 { return int64(s.lasted(now)) },
	api.SortConnect: func(_ *API, s seen, now time.Time) int64 {
		if t, ok := s.life.Established(); ok {
			return int64(t.Start + t.Duration)
		}
		return int64(s.lasted(now))
	},
	api.SortFirstByte: func(_ *API, s seen, now time.Time) int64 { return int64(s.life.Waited(s.lasted(now))) },
	api.SortBytes: func(a *API, s seen, _ time.Time) int64 {
		toEndpoint, toClient := a.proxy.Trace.Bytes(s.life)
		return toEndpoint + toClient
	},
}

// older returns the page of all after token, and the token of the next page. all is sorted from the newest to the
// oldest connection.
func older(all []seen, size int, token string) (page []seen, next string, err error) {
	before := uint64(math.MaxUint64)
	if token != "" {
		if before, err = strconv.ParseUint(token, 10, 64); err != nil {
			return nil, "", badQuery("continue", token, "the value of continue in a response")
		}
	}
	first, _ := slices.BinarySearchFunc(all, before, func(s seen, before uint64) int {
		if s.life.ID < before {
			return 0
		}
		return -1
	})
	if all = all[first:]; len(all) > size {
		all = all[:size]
		next = strconv.FormatUint(all[size-1].life.ID, 10)
	}
	return all, next, nil
}

// tried reports whether usher attempted to connect l to the selected endpoint.
func (s *selection) tried(l *conn.Record) bool {
	return s.anyEndpoint() || slices.ContainsFunc(l.Attempts(), func(t conn.Attempt) bool { return s.hasEndpoint(t.Endpoint, t.Pod) })
}

func (a *API) connection(r *http.Request) (any, error) {
	id, err := strconv.ParseUint(r.PathValue("id"), 10, 64)
	if err != nil {
		return nil, badQuery("id", r.PathValue("id"), "the number of a connection")
	}
	life, end := a.proxy.Trace.Find(id)
	switch {
	case life != nil:
		return a.describe(seen{life: life}, time.Now()), nil
	case end != nil:
		return a.describe(seen{end.Record, end}, time.Now()), nil
	}
	return nil, notFound(fmt.Sprintf("connection %d not found: it does not exist, or its record has expired (see --trace-events)", id))
}

// sees returns s in the API's form.
func sees(s portal.SourceAddress) api.Sees { return api.Sees{Source: s.String(), SourceText: s.Text()} }

// describe returns the connection in its state at now.
func (a *API) describe(s seen, now time.Time) api.Connection {
	l, about := s.life, trace.SubjectOf(s.life)
	c := api.Connection{
		ID: about.Conn, Service: about.Port.ServiceName().String(), Port: about.Port.Port, Family: about.Port.Family.String(), Protocol: string(about.Protocol),
		Client: about.Client.String(), VIP: about.VIP.String(), Accepted: l.Start,
		State: api.Connecting, DurationMs: milliseconds(s.lasted(now)), Attempts: []api.Attempt{},
	}
	if about.Protocol == config.UDP { // a session begins when its first datagram goes to an endpoint
		c.State = api.Sending
	}
	if about.Via != nil {
		c.Via = about.Via.String()
	}
	for i, t := range l.Attempts() {
		c.Attempts = append(c.Attempts, api.Attempt{
			Sees: sees(t.SourceAddress), Number: i + 1, Endpoint: t.Endpoint.String(), Pod: t.Pod, Reason: t.Reason.String(), Skipped: t.Skipped,
			StartMs: milliseconds(t.Start), DurationMs: milliseconds(t.Duration), Result: t.Result.String(), Error: t.Err,
		})
	}
	c.FirstByteMs = milliseconds(l.FirstByte())
	if t, ok := l.Established(); ok {
		c.State, c.Endpoint, c.Pod, c.ConnectMs = api.Established, t.Endpoint.String(), t.Pod, milliseconds(t.Start+t.Duration)
	}
	if s.end == nil {
		c.BytesToEndpoint, c.BytesToClient = a.proxy.Trace.Bytes(l)
		c.Outcomes = l.Flags(now.Sub(l.Start), outcome.Open).Words()
		return c
	}
	c.State, c.End, c.Error, c.Outcomes = api.Ended, s.end.End.Outcome.String(), s.end.Err, s.end.Flags.Words()
	c.BytesToEndpoint, c.BytesToClient = s.end.End.ToEndpoint, s.end.End.ToClient
	return c
}
