package stream

import (
	"context"
	"time"
)

// inLine is a client on a loop that waits in line for an endpoint. It belongs to the loop.
type inLine struct {
	*waiting
	timeout *time.Timer
	drained func() bool // stops what is done when connections are given up
}

// queue waits until the client is called, or for so long, and lets others use the loop.
func (w *waiting) queue(d time.Duration) {
	if !w.watch() {
		return
	}
	q := &inLine{waiting: w}
	w.line = q
	goOn := func() { _ = w.loop.Do(q.goOn) } // it runs as long as there are connections
	q.timeout = time.AfterFunc(d, goOn)
	q.drained = context.AfterFunc(w.connection.server.ctx, goOn)
	w.search.WhenCalled(goOn)
	w.changed() // what has come since it is watched is not told again
}

// goOn goes on with the search, which knows why.
func (q *inLine) goOn() {
	if q.leave() {
		q.next()
	}
}

// left reports whether the client has left. If something was read of it, only a reset says so: what
// it sent may be a whole request.
func (q *inLine) left() bool { return len(q.First()) == 0 && q.Left() }

// leave ends the waiting. It returns false if it has ended.
func (q *inLine) leave() bool {
	if q.line != q {
		return false
	}
	q.line = nil
	q.timeout.Stop()
	q.drained()
	return true
}
