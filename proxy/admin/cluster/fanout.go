package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// answerOf is one node's answer, or the reason that there is none.
type answerOf[T any] struct {
	answer T
	err    error
}

// each queries every node, and returns the answers in the order of nodes.
func each[T any](ctx context.Context, v *View, nodes []Node, do func(context.Context, Node) (T, error)) []answerOf[T] {
	all := make([]answerOf[T], len(nodes))
	var done sync.WaitGroup
	defer done.Wait()
	for i, n := range nodes {
		if err := v.away(n.Name); err != nil {
			all[i].err = err
			continue
		}
		select {
		case v.slots <- struct{}{}:
		case <-ctx.Done():
			all[i].err = ctx.Err()
			continue
		}
		done.Go(func() {
			defer func() { <-v.slots }()
			ctx, cancel := context.WithTimeoutCause(ctx, v.timeout, errSilent)
			defer cancel()
			answer, err := do(ctx, n)
			if err != nil && errors.Is(context.Cause(ctx), errSilent) {
				err = errSilent
			}
			all[i] = answerOf[T]{answer, err}
			v.note(n.Name, err)
			if len(nodes) > maxKept {
				n.Client.Close()
			}
		})
	}
	return all
}

// errSilent is the error for a node whose usher is too slow.
var errSilent = errors.New("no response within " + maxTimeout.String())

// away returns the error with which usher on a node recently failed to answer, if it must not be queried yet;
// otherwise nil.
func (v *View) away(node string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if a := v.absent[node]; time.Now().Before(a.until) {
		return a.err
	}
	return nil
}

// note records whether usher on a node answered. A "not found" counts as an answer.
func (v *View) note(node string, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var said *api.Error
	switch {
	case err == nil || errors.As(err, &said):
		delete(v.absent, node)
	case v.ctx.Err() == nil:
		times := min(v.absent[node].times, 10)
		v.absent[node] = unreachable{until: time.Now().Add(min(firstRetry<<times, maxRetry)), times: times + 1, err: err}
	}
}
