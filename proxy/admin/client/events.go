package client

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// EventQuery selects events. Empty fields match all.
type EventQuery struct {
	Service, Client, Endpoint, Protocol string
	Outcome                             string        // ok, retry, failed, or the code of an end; separated by commas
	Kind                                string        // kinds, separated by commas
	Slower                              time.Duration // only ends of connections whose clients waited longer
	Connection                          uint64
	// History makes the stream begin with the events that the trace still has.
	History bool
	// After makes the stream begin after the position with this ID instead; events removed meanwhile count as
	// missed.
	After string
	// Once makes the stream end after the newest event, instead of waiting for more.
	Once bool
	// Rate is the maximum number of events per second; 0 = usher's default.
	Rate int
}

func (q EventQuery) values() url.Values {
	v := values("service", q.Service, "client", q.Client, "endpoint", q.Endpoint, "protocol", q.Protocol, "outcome", q.Outcome, "kind", q.Kind)
	setDuration(v, "slowerThan", q.Slower)
	if q.Connection != 0 {
		v.Set("connection", strconv.FormatUint(q.Connection, 10))
	}
	if q.History {
		v.Set("history", "true")
	}
	if q.Once {
		v.Set("follow", "false")
	}
	if q.Rate > 0 {
		v.Set("rate", strconv.Itoa(q.Rate))
	}
	return v
}

// Message is one item of the stream of events. At most one of Hello, Event and Missed is set.
type Message struct {
	// ID is the position in the stream, for EventQuery.After: the ID of the last event that usher read, whether or
	// not it was selected; "" if the position is unchanged.
	ID     string
	Hello  *api.Hello
	Event  *api.Event
	Missed uint64 // events that were left out at this point
}

// ErrStreamEnded is the error of a stream that ended unexpectedly.
var ErrStreamEnded = errors.New("the event stream has ended: usher stopped or was replaced, or the events were read too slowly")

// Events returns the stream of events. It ends with an error or, with EventQuery.Once, without one. Each
// iteration opens a separate stream.
func (c *Client) Events(ctx context.Context, q EventQuery) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		outer := ctx
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		header := http.Header{"Accept": {"text/event-stream"}}
		if q.After != "" {
			header["Last-Event-ID"] = []string{q.After}
		}
		res, err := c.send(ctx, http.MethodGet, api.Prefix+"/events", q.values(), header, nil)
		if err != nil {
			yield(Message{}, err)
			return
		}
		defer res.Body.Close()
		// A stream that is idle for twice its heartbeat is dead; reading from it would block forever.
		silence := time.AfterFunc(answerTimeout, cancel)
		defer silence.Stop()
		allowed := answerTimeout
		stream := bufio.NewScanner(res.Body)
		stream.Buffer(nil, maxEvent)
		for {
			m, err := readMessage(stream, func() { silence.Reset(allowed) })
			switch {
			case outer.Err() != nil:
				err = outer.Err()
			case err == nil:
			case errors.Is(err, io.EOF) && q.Once:
				return
			case errors.Is(err, bufio.ErrTooLong): // the rest of the stream is unusable
				err = &UnreachableError{Address: c.address, Err: fmt.Errorf("an event is longer than %d bytes", maxEvent)}
			default:
				err = ErrStreamEnded
			}
			if m.Hello != nil && m.Hello.HeartbeatSeconds > 0 {
				allowed = time.Duration(2 * m.Hello.HeartbeatSeconds * float64(time.Second))
			}
			silence.Stop() // the reader may take long: its terminal may be paused
			if !yield(m, err) || err != nil {
				return
			}
			silence.Reset(allowed)
		}
	}
}

// readMessage reads up to the next message of a known kind, and calls alive for every line.
func readMessage(stream *bufio.Scanner, alive func()) (m Message, err error) {
	for {
		id, event, data, err := readBlock(stream, alive)
		if err != nil {
			return m, err
		}
		var missed api.Missed
		var into any
		switch event {
		case api.StreamHello:
			m.Hello = new(api.Hello)
			into = m.Hello
		case api.StreamStep, api.StreamChange:
			m.Event = new(api.Event)
			into = m.Event
		case api.StreamMissed:
			into = &missed
		case "":
			return Message{ID: id}, nil
		default:
			continue
		}
		if err := json.Unmarshal(data, into); err != nil {
			return Message{}, fmt.Errorf("event %s: %w", event, err)
		}
		m.ID, m.Missed = id, missed.Missed
		return m, nil
	}
}

// maxEvent is the maximum size of an event in bytes: far more than any has.
const maxEvent = 1 << 20

// readBlock reads the lines of one event, as defined in the HTML standard (9.2.6, Interpreting an event
// stream), or those of a new position, which has only an ID. Each line of data ends with a newline.
func readBlock(stream *bufio.Scanner, alive func()) (id, event string, data []byte, err error) {
	for left := maxEvent; stream.Scan(); {
		alive()
		line := stream.Text()
		if line == "" {
			if data != nil || id != "" && event == "" {
				return id, event, data, nil
			}
			id, event, left = "", "", maxEvent
			continue
		}
		if left -= len(line); left < 0 {
			return "", "", nil, bufio.ErrTooLong
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "id":
			id = value
		case "event":
			event = value
		case "data":
			data = append(append(data, value...), '\n')
		}
	}
	return "", "", nil, cmp.Or(stream.Err(), io.EOF)
}
