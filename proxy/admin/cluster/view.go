package cluster

import (
	"context"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// Limits of queries and kept data.
const (
	maxAtOnce    = 16               // concurrent requests
	maxKept      = 64               // nodes with kept connections: through an API server each takes a megabyte
	maxQuestions = 16               // questions with kept answers
	maxTimeout   = 5 * time.Second  // for one answer of a node
	minFresh     = 2 * time.Second  // how long an answer is fresh; four times as long as it took, if that is more,
	maxFresh     = time.Minute      // up to this
	grace        = 10 * time.Second // during a round the old answer is used until its age is twice its fresh time plus this
	firstRetry   = 5 * time.Second  // how long a node that did not answer is not queried; twice as long each time,
	maxRetry     = time.Minute      // up to this
	findEvery    = 30 * time.Second // interval for looking for nodes
)

// Node is a node whose usher can be queried.
type Node struct {
	Name   string
	Client *client.Client
}

// Finder returns the nodes, sorted by name, each name once. It owns the Clients; it is called repeatedly.
type Finder func(context.Context) ([]Node, error)

// View queries usher on nodes.
type View struct {
	find  Finder
	ctx   context.Context
	stop  context.CancelFunc
	slots chan struct{}

	timeout time.Duration

	rounds    sync.WaitGroup // in progress
	mu        sync.Mutex     // guards the fields below
	questions map[string]*question
	absent    map[string]unreachable // by node
}

// question is a query of readers, with the last answer.
type question struct {
	lastUsed  time.Time     // when a reader last asked it
	running   chan struct{} // closed when the round in progress has ended; nil if there is none
	completed time.Time     // when answer was complete; zero for never
	fresh     time.Duration
	answer    any
	err       error
}

// unreachable is the state of a node that did not answer.
type unreachable struct {
	until time.Time
	times int // consecutive
	err   error
}

// NewView returns a View of the nodes that find returns.
func NewView(find Finder) *View {
	v := &View{find: find, timeout: maxTimeout, slots: make(chan struct{}, maxAtOnce), questions: map[string]*question{}, absent: map[string]unreachable{}}
	v.ctx, v.stop = context.WithCancel(context.Background())
	return v
}

// Close ends all rounds, and waits for them.
func (v *View) Close() {
	v.mu.Lock()
	v.stop()
	v.mu.Unlock()
	v.rounds.Wait()
}

// ask returns the answer to a question: the last one while it is fresh, otherwise that of a round. When ctx
// is done, the round continues for other readers, and for the next request.
func ask[T any](ctx context.Context, v *View, key string, atLeast time.Duration, round func(context.Context) (T, error)) (answer T, err error) {
	v.mu.Lock()
	now := time.Now()
	q := v.questions[key]
	if q == nil {
		if !v.makeRoom() {
			v.mu.Unlock()
			return answer, &api.Error{Code: http.StatusServiceUnavailable, Message: "too many concurrent requests"}
		}
		q = &question{}
		v.questions[key] = q
	}
	if err := v.ctx.Err(); err != nil {
		v.mu.Unlock()
		return answer, err
	}
	q.lastUsed = now
	age := now.Sub(q.completed)
	if q.running == nil && age > q.fresh {
		q.running = make(chan struct{})
		v.rounds.Go(func() {
			began := time.Now()
			answer, err := round(v.ctx)
			v.mu.Lock()
			defer v.mu.Unlock()
			q.completed = time.Now()
			if err != nil {
				atLeast = minFresh
			}
			q.fresh = max(atLeast, min(4*q.completed.Sub(began), maxFresh))
			q.answer, q.err = answer, err
			close(q.running)
			q.running = nil
		})
	}
	running := q.running
	if running == nil || age < 2*q.fresh+grace && q.err == nil {
		answer, _ = q.answer.(T)
		err = q.err
		v.mu.Unlock()
		return answer, err
	}
	v.mu.Unlock()
	select {
	case <-running:
	case <-ctx.Done():
		return answer, ctx.Err()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	answer, _ = q.answer.(T)
	return answer, q.err
}

// makeRoom ensures that there is a free slot for a question. If needed, it removes the question that was asked
// least recently, unless all are in progress: then it returns false. The caller holds mu.
func (v *View) makeRoom() bool {
	if len(v.questions) < maxQuestions {
		return true
	}
	oldest := ""
	for key, q := range v.questions {
		if q.running == nil && (oldest == "" || q.lastUsed.Before(v.questions[oldest].lastUsed)) {
			oldest = key
		}
	}
	delete(v.questions, oldest)
	return oldest != ""
}

// nodes returns the existing nodes.
func (v *View) nodes(ctx context.Context) ([]Node, error) {
	return ask(ctx, v, "found", findEvery, func(ctx context.Context) ([]Node, error) {
		found, err := v.find(ctx)
		if err != nil {
			return nil, err
		}
		names := map[string]bool{}
		for _, n := range found {
			names[n.Name] = true
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		maps.DeleteFunc(v.absent, func(name string, _ unreachable) bool { return !names[name] })
		return found, nil
	})
}
