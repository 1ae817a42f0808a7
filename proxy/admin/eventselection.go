package admin

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/trace"
)

// eventSelection selects the events of a subscriber. Zero fields match all.
type eventSelection struct {
	selection
	conn     uint64
	kinds    map[trace.Kind]bool
	outcomes []string
	slower   time.Duration // only ends of connections whose clients waited longer
	// steps is set if only steps of connections can match.
	steps bool
}

func newEventSelection(query url.Values) (s eventSelection, err error) {
	if s.selection, err = newSelection(query); err != nil {
		return s, err
	}
	if s.kinds, err = parseKinds(query.Get("kind")); err != nil {
		return s, err
	}
	if s.outcomes, err = oneOfEach("outcome", query.Get("outcome"), eventOutcomes()); err != nil {
		return s, err
	}
	if s.slower, err = interval(query, "slowerThan"); err != nil {
		return s, err
	}
	conn, err := number(query, "connection", 0, 1<<62, 0)
	s.conn = uint64(conn)
	s.steps = s.conn != 0 || s.slower > 0 || s.outcomes != nil || s.client.IsValid() || s.protocol != ""
	return s, err
}

// allSteps is the name for all kinds that are steps of connections.
const allSteps = "steps"

func parseKinds(value string) (map[trace.Kind]bool, error) {
	if value == "" {
		return nil, nil
	}
	kinds := map[trace.Kind]bool{}
	for name := range strings.SplitSeq(value, ",") {
		known := false
		for _, k := range trace.Kinds() {
			if name == k.String() || name == allSteps && k.IsStep() || name == api.KindChanges && !k.IsStep() {
				kinds[k], known = true, true
			}
		}
		if !known {
			return nil, badQuery("kind", name, "one of "+allSteps+", "+api.KindChanges+", "+kindNames())
		}
	}
	return kinds, nil
}

func kindNames() string {
	var names []string
	for _, k := range trace.Kinds() {
		names = append(names, k.String())
	}
	return strings.Join(names, ", ")
}

// eventOutcomes returns the values of the parameter outcome.
func eventOutcomes() []string {
	return append([]string{api.OutcomeOK, api.OutcomeRetry, api.OutcomeFailed}, outcome.Words()...)
}

// hasSteps reports whether steps of connections can match.
func (s *eventSelection) hasSteps() bool {
	return s.kinds == nil || slices.ContainsFunc(trace.Kinds(), func(k trace.Kind) bool { return s.kinds[k] && k.IsStep() })
}

// matches reports whether e is selected.
func (s *eventSelection) matches(e *trace.Event) bool {
	if s.kinds != nil && !s.kinds[e.Kind] || s.steps && !e.Kind.IsStep() || s.conn != 0 && s.conn != e.Conn {
		return false
	}
	if e.Kind.IsStep() && !s.subject(&e.Subject) || !s.servicePort(e.Port) || !s.hasEndpoint(e.Endpoint, e.Pod) {
		return false
	}
	if s.slower > 0 && (e.Kind != trace.Closed || e.Record.Waited(e.Duration) <= s.slower) {
		return false
	}
	return s.outcomes == nil || slices.ContainsFunc(s.outcomes, func(o string) bool { return hasOutcome(e, o) })
}

// hasOutcome reports whether e is a step with the outcome wanted.
func hasOutcome(e *trace.Event, wanted string) bool {
	switch wanted {
	case api.OutcomeOK:
		return e.Kind == trace.Established || e.Kind == trace.Closed && e.Flags&(conn.Broken|conn.Unanswered) == 0
	case api.OutcomeRetry:
		return e.Kind == trace.Attempt && (e.Err != "" || e.Attempt > 1) || e.Kind == trace.Waiting
	case api.OutcomeFailed:
		return e.Kind == trace.Closed && e.Flags&conn.Broken != 0
	}
	return e.Kind == trace.Closed && e.End.Outcome.String() == wanted
}
