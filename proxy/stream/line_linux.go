package stream

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/search"
)

// inLine is a client on a loop that waits in line for an endpoint. It belongs to the loop.
type inLine struct {
	*waiting
	watch   forward.Registration
	timeout *time.Timer
	drained func() bool // stops what is done when connections are given up
}

// queue waits until the client is called, or for so long, and lets others use the loop.
func (w *waiting) queue(d time.Duration) {
	q := &inLine{waiting: w}
	var err error
	if q.watch, err = w.loop.Add(int(w.Socket), forward.Readable|forward.HungUp|forward.Once, q); err != nil {
		w.search.Abandon(time.Now())
		w.connection.refuse(search.End(unix.ENOMEM), unix.ENOMEM)
		return
	}
	w.line = q
	goOn := func() { _ = w.loop.Do(q.goOn) } // it runs as long as there are connections
	q.timeout = time.AfterFunc(d, goOn)
	q.drained = context.AfterFunc(w.connection.server.ctx, goOn)
	w.search.WhenCalled(goOn)
}

// goOn goes on with the search, which knows why.
func (q *inLine) goOn() {
	if q.leave() {
		q.next()
	}
}

// Ready implements forward.Handler: the client has sent something, or has left. If something was read of
// it, only a reset says so: what it sent may be a whole request.
func (q *inLine) Ready(r forward.Readiness) {
	if (r&forward.Failed != 0 || len(q.First()) == 0 && q.Left()) && q.leave() {
		q.search.Abandon(time.Now())
		q.connection.refuse(search.End(search.ErrClientLeft), search.ErrClientLeft)
	}
}

// leave ends the waiting. It returns false if it has ended.
func (q *inLine) leave() bool {
	if q.line != q {
		return false
	}
	q.line = nil
	q.loop.Remove(q.watch)
	q.timeout.Stop()
	q.drained()
	return true
}
