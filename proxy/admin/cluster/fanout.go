package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// told is what one node has told, or why it has not.
type told[T any] struct {
	answer T
	err    error
}

// each asks every node, and returns what they tell in the order of nodes.
func each[T any](ctx context.Context, v *View, nodes []Node, do func(context.Context, Node) (T, error)) []told[T] {
	all := make([]told[T], len(nodes))
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
			ctx, cancel := context.WithTimeoutCause(ctx, v.patience, errSilent)
			defer cancel()
			answer, err := do(ctx, n)
			if err != nil && errors.Is(context.Cause(ctx), errSilent) {
				err = errSilent
			}
			all[i] = told[T]{answer, err}
			v.note(n.Name, err)
			if len(nodes) > maxKept {
				n.Client.Close()
			}
		})
	}
	return all
}

// errSilent is why an usher that is too slow does not answer.
var errSilent = errors.New("no response within " + maxPatience.String())

// away returns why an usher is not asked now: it has not answered lately. nil: it is asked.
func (v *View) away(node string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if a := v.absent[node]; time.Now().Before(a.until) {
		return a.err
	}
	return nil
}

// note notes whether an usher has answered. To say that something is not there is an answer.
func (v *View) note(node string, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var said *api.Error
	switch {
	case err == nil || errors.As(err, &said):
		delete(v.absent, node)
	case v.ctx.Err() == nil:
		times := min(v.absent[node].times, 10)
		v.absent[node] = absence{until: time.Now().Add(min(firstAbsence<<times, maxAbsence)), times: times + 1, err: err}
	}
}
