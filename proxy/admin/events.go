package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/trace"
)

// MaxSubscribers is the maximum number of concurrent readers of events. Each costs about 100 kB and a
// descriptor, whether it reads or not.
const MaxSubscribers = 128

// heartbeat is the longest idle time of a stream.
var heartbeat = 15 * time.Second

const (
	// writeTimeout is how long a write to a subscriber may take; then usher disconnects it.
	writeTimeout = 10 * time.Second
	// gathering is how long events are collected before they are sent, so that a single event wakes neither the
	// stream's goroutine nor the subscriber.
	gathering = 25 * time.Millisecond
	// batch is the number of events taken from the trace at once.
	batch = 64
)

// Limits of the parameter rate, in events per second.
const (
	defaultRate = 1000
	maxRate     = 100000
)

// subscribers counts the readers of events.
type subscribers struct {
	now     atomic.Int64
	refused atomic.Int64 // since the start
}

// enter counts one more, or returns false if the maximum is reached.
func (s *subscribers) enter() bool {
	if s.now.Add(1) <= MaxSubscribers {
		return true
	}
	s.now.Add(-1)
	s.refused.Add(1)
	return false
}

func (s *subscribers) leave() { s.now.Add(-1) }

// events serves /events with a stream.
func (a *API) events(w http.ResponseWriter, r *http.Request, route api.Route) {
	err := checkQuery(route, r.URL.Query())
	var s *stream
	if err == nil {
		s, err = a.newStream(r)
	}
	if err != nil {
		fail(w, r, err)
		return
	}
	if !a.subscribers.enter() {
		w.Header().Set("Retry-After", "5")
		w.Header().Set("Connection", "close") // other requests need the slot
		WriteError(w, http.StatusServiceUnavailable, fmt.Sprintf("too many subscribers: the maximum is %d", MaxSubscribers))
		return
	}
	defer a.subscribers.leave()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	s.out, s.control = w, http.NewResponseController(w)
	// The server's own deadlines are for answers that end.
	_ = s.control.SetReadDeadline(time.Time{})
	s.run(r.Context())
}

// stream serves one subscriber.
type stream struct {
	instance string
	reader   *trace.Reader
	wanted   eventSelection
	follow   bool
	rate     *rate.Limiter

	out     http.ResponseWriter
	control *http.ResponseController
	pending bytes.Buffer
	missed  uint64 // not yet reported
	last    uint64 // number of the last event read, selected or not
	silence time.Duration
	sent    time.Time // the last flush
}

func (a *API) newStream(r *http.Request) (s *stream, err error) {
	query := r.URL.Query()
	s = &stream{instance: a.instance, silence: heartbeat, follow: flag(query, "follow", true)}
	if s.wanted, err = newEventSelection(query); err != nil {
		return nil, err
	}
	perSecond, err := number(query, "rate", 1, maxRate, defaultRate)
	if err != nil {
		return nil, err
	}
	s.rate = rate.NewLimiter(rate.Limit(perSecond), int(perSecond))
	history := flag(query, "history", !s.follow)
	switch seq, ok := a.lastEvent(r.Header.Get("Last-Event-ID")); {
	case ok:
		s.reader = a.proxy.Trace.ReaderBehind(seq)
	default:
		s.reader = a.proxy.Trace.Reader(!history)
	}
	if !s.wanted.hasSteps() {
		s.reader.OnlyChanges()
	}
	return s, nil
}

// lastEvent returns the number of the event to continue after. Numbers of another process are invalid here.
func (a *API) lastEvent(id string) (uint64, bool) {
	instance, number, ok := strings.Cut(id, "-")
	seq, err := strconv.ParseUint(number, 10, 64)
	return seq, ok && err == nil && instance == a.instance
}

// run sends events until the client disconnects, or is too slow.
func (s *stream) run(ctx context.Context) {
	s.put("", api.StreamHello, api.Hello{Instance: s.instance, HeartbeatSeconds: s.silence.Seconds()})
	if s.flush() != nil {
		return
	}
	buf := make([]trace.Event, batch)
	for {
		n, missed, err := s.next(ctx, buf)
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return
		}
		s.missed += missed
		for i := range n {
			s.event(&buf[i])
			s.last = buf[i].Seq
		}
		clear(buf[:n]) // they refer to connections
		ended := !s.follow && n == 0 && err == nil
		if ended || n < batch {
			s.sendMissed()
		}
		idle := s.pending.Len() == 0 && time.Since(s.sent) >= s.silence // there may have been events that do not match
		if idle {
			s.pending.WriteString(": heartbeat\n")
		}
		if idle || ended {
			s.sendPosition()
		}
		if s.pending.Len() > 0 && s.flush() != nil || ended {
			return
		}
		if n < batch && s.follow {
			s.gather(ctx)
		}
	}
}

// next waits for events until a heartbeat is due. If the stream does not follow, it returns none when there
// are no more.
func (s *stream) next(ctx context.Context, buf []trace.Event) (int, uint64, error) {
	if !s.follow {
		n, missed := s.reader.Poll(buf)
		return n, missed, ctx.Err()
	}
	waiting, cancel := context.WithDeadline(ctx, s.sent.Add(s.silence))
	defer cancel()
	n, missed, err := s.reader.Next(waiting, buf)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return n, missed, err
}

// gather waits so that events accumulate.
func (s *stream) gather(ctx context.Context) {
	select {
	case <-time.After(gathering):
	case <-ctx.Done():
	}
}

// event adds e to the pending data, if it matches.
func (s *stream) event(e *trace.Event) {
	if !s.wanted.matches(e) {
		return
	}
	if !s.rate.Allow() && s.follow {
		s.missed++
		return
	}
	s.sendMissed()
	name := api.StreamStep
	if !e.Kind.IsStep() {
		name = api.StreamChange
	}
	id := s.id(e.Seq)
	s.put(id, name, newEvent(id, e))
}

func (s *stream) sendMissed() {
	if s.missed > 0 {
		s.put("", api.StreamMissed, api.Missed{Missed: s.missed})
		s.missed = 0
	}
}

// sendPosition sends the ID of the last event read, without an event, so that those not selected do not count as missed
// for a subscriber that continues there.
func (s *stream) sendPosition() {
	if s.last > 0 {
		fmt.Fprintf(&s.pending, "id: %s\n", s.id(s.last))
	}
	s.pending.WriteByte('\n')
}

func (s *stream) id(seq uint64) string { return s.instance + "-" + strconv.FormatUint(seq, 10) }

// put appends an event in the format of the HTML standard, 9.2.6.
func (s *stream) put(id, name string, data any) {
	text, err := json.Marshal(data)
	if err != nil {
		return // structs of strings and numbers can always be encoded
	}
	if id != "" {
		fmt.Fprintf(&s.pending, "id: %s\n", id)
	}
	fmt.Fprintf(&s.pending, "event: %s\ndata: %s\n\n", name, text)
}

// flush sends the pending data.
func (s *stream) flush() error {
	if err := s.control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := s.out.Write(s.pending.Bytes())
	s.pending.Reset()
	s.sent = time.Now()
	if err != nil {
		return err
	}
	return s.control.Flush()
}

// newEvent returns e in the API's form.
func newEvent(id string, e *trace.Event) api.Event {
	out := api.Event{
		ID: id, Time: e.Time, Kind: e.Kind.String(), Text: e.String(),
		Protocol: string(e.Protocol), Connection: e.Conn,
		Attempt: e.Attempt, Pod: e.Pod, Reason: e.Reason, Skipped: e.Skipped, Source: e.SourceAddress.String(), DurationMs: milliseconds(e.Duration), Error: e.Err,
		End: e.End.Outcome.String(), BytesToEndpoint: e.End.ToEndpoint, BytesToClient: e.End.ToClient, Count: e.Count,
	}
	if e.Port.Service != "" {
		out.Service, out.Port = e.Port.ServiceName().String(), e.Port.Port
	}
	if e.Port.Family != 0 {
		out.Family = e.Port.Family.String()
	}
	if e.Client.IsValid() {
		out.Client, out.VIP = e.Client.String(), e.VIP.String()
	}
	if e.Via != nil {
		out.Via = e.Via.String()
	}
	if e.Endpoint.IsValid() {
		out.Endpoint = e.Endpoint.String()
	}
	if e.Kind == trace.Attempt {
		out.Result = e.Result.String()
	}
	return out
}
