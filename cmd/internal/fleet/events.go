package fleet

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// Message is a message of an usher instance's stream of events or, with Err, the reason why the stream has ended or is
// unavailable. Without a node, Err is the reason why no instances were found.
type Message struct {
	From Usher
	client.Message
	Err error
}

// ahead is the number of messages that History buffers for each stream.
const ahead = 64

// History returns the past events that usher instances have kept, sorted by time. A stream that breaks ends with a
// Message with the error, and the others continue. q.Once must be set.
func History(ctx context.Context, ushers []Usher, q client.EventQuery) iter.Seq[Message] {
	return func(yield func(Message) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		// Exclude unresponsive instances first, so that the open streams of others do not wait for them.
		answers := Ask(ctx, ushers, func(ctx context.Context, u Usher) (api.Status, error) { return u.Status(ctx) })
		ushers = nil
		for _, a := range answers {
			if a.Err == nil {
				ushers = append(ushers, a.From)
			} else if !yield(Message{From: a.From, Err: a.Err}) {
				return
			}
		}
		streams := make([]<-chan Message, len(ushers))
		heads := make([]*Message, len(ushers))
		room := make(chan struct{}, AtOnce)
		for i, u := range ushers {
			c := make(chan Message, ahead)
			streams[i] = c
			go func() {
				defer close(c)
				read(ctx, u, q, room, c)
			}()
		}
		for {
			first := -1
			for i := range streams {
				if heads[i] == nil && streams[i] != nil {
					if m, more := <-streams[i]; more {
						heads[i] = &m
					} else {
						streams[i] = nil
					}
				}
				if heads[i] != nil && (first < 0 || heads[i].when().Before(heads[first].when())) {
					first = i
				}
			}
			if first < 0 || ctx.Err() != nil || !yield(*heads[first]) {
				return
			}
			heads[first] = nil
		}
	}
}

// when returns the time of an event; other messages come before all events.
func (m *Message) when() (t time.Time) {
	if m.Event != nil {
		t = m.Event.Time
	}
	return t
}

// read sends the messages of an usher instance's stream to c until the stream ends. It holds a slot of the channel room
// until the instance has responded, for at most AnswerTime.
func read(ctx context.Context, u Usher, q client.EventQuery, room chan struct{}, c chan<- Message) {
	select {
	case room <- struct{}{}:
	case <-ctx.Done():
		return
	}
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(AnswerTime, cancel)
	answered := sync.OnceFunc(func() { <-room })
	defer answered()
	for m, err := range u.Events(ctx, q) {
		late.Stop()
		answered()
		if err != nil && ctx.Err() != nil && outer.Err() == nil {
			err = fmt.Errorf("no answer within %s", AnswerTime)
		}
		select {
		case c <- Message{u, m, err}:
		case <-outer.Done():
			return
		}
	}
}

// againTime is the maximum time until Follow opens an ended stream again. newTime is the interval in which it searches
// for new nodes while no stream has ended.
const (
	againTime = 5 * time.Second
	newTime   = time.Minute
)

// Follow returns new events of usher instances, as they arrive, until ctx ends. after has, by node, the Message.ID
// after which to begin; Follow updates it. If a stream ends with an error, Follow returns the error once, searches for
// the instance and connects again. It also connects to the instances of new nodes.
func Follow(ctx context.Context, f Finder, ushers []Usher, q client.EventQuery, after map[string]string) iter.Seq[Message] {
	return func(yield func(Message) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		all := make(chan Message)
		ended := make(chan string)
		room := make(chan struct{}, AtOnce)
		runs, silent := map[string]bool{}, map[string]string{}
		begin := func(u Usher) {
			runs[u.Node] = true
			q := q
			q.After = after[u.Node]
			q.History = q.History || q.After != "" // also for a successor, which does not know this ID
			go func() {
				read(ctx, u, q, room, all)
				select {
				case ended <- u.Node:
				case <-ctx.Done():
				}
			}()
		}
		for _, u := range ushers {
			begin(u)
		}
		found, wanted := time.Now(), len(ushers)
		again := time.NewTicker(againTime)
		defer again.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case m := <-all:
				if m.Err != nil {
					text := m.Err.Error()
					if silent[m.From.Node] == text {
						continue
					}
					silent[m.From.Node] = text
				} else {
					delete(silent, m.From.Node)
				}
				if m.ID != "" {
					after[m.From.Node] = m.ID
				}
				if !yield(m) {
					return
				}
			case node := <-ended:
				delete(runs, node)
			case <-again.C:
				if len(runs) >= wanted && time.Since(found) < newTime {
					continue
				}
				now, err := f.Find(ctx)
				if err != nil {
					if text := err.Error(); silent[""] != text && ctx.Err() == nil {
						silent[""] = text
						if !yield(Message{Err: err}) {
							return
						}
					}
					continue
				}
				delete(silent, "")
				found, wanted = time.Now(), len(now)
				for _, u := range now {
					if !runs[u.Node] {
						begin(u)
					}
				}
			}
		}
	}
}
