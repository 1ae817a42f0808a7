package trace

import (
	"context"
	"sync"
)

// Log keeps the last events. It is safe for concurrent use.
type Log struct {
	max int

	mu   sync.Mutex
	more *sync.Cond // an event was added, or a reader's context has ended
	seq  uint64     // of the newest event
	ring []Event    // event number n is at (n-1) % max; grows up to max
}

// NewLog returns a Log that keeps the last max events (at least 1), each of
// about 400 bytes. It takes memory as events come.
func NewLog(max int) *Log {
	l := &Log{max: max}
	if l.max < 1 {
		l.max = 1
	}
	l.more = sync.NewCond(&l.mu)
	return l
}

// Add appends e and numbers it.
func (l *Log) Add(e Event) {
	l.mu.Lock()
	l.seq++
	e.Seq = l.seq
	if len(l.ring) < l.max {
		l.ring = append(l.ring, e)
	} else {
		l.ring[(l.seq-1)%uint64(l.max)] = e
	}
	l.mu.Unlock()
	l.more.Broadcast()
}

// Reader reads a Log from some place on. It is for one goroutine.
type Reader struct {
	log  *Log
	next uint64
}

// Reader returns a reader that begins with the oldest event that is kept, or,
// if fresh is set, with the next one that is added.
func (l *Log) Reader(fresh bool) *Reader {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &Reader{log: l, next: l.oldest()}
	if fresh {
		r.next = l.seq + 1
	}
	return r
}

// oldest returns the number of the oldest event that is kept.
func (l *Log) oldest() uint64 { return l.seq - uint64(len(l.ring)) + 1 }

// Next copies events into buf, oldest first, and waits until there is at least
// one. It returns how many it copied and how many were missed just before them
// because the reader was too slow. The error is ctx's, when that has ended.
func (r *Reader) Next(ctx context.Context, buf []Event) (n int, missed uint64, err error) {
	l := r.log
	stop := context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.more.Broadcast()
	})
	defer stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for r.next > l.seq {
		if ctx.Err() != nil {
			return 0, 0, ctx.Err()
		}
		l.more.Wait()
	}
	return r.copy(buf)
}

// Poll is Next without the waiting: it returns 0 events if there are none.
func (r *Reader) Poll(buf []Event) (n int, missed uint64) {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	n, missed, _ = r.copy(buf)
	return n, missed
}

func (r *Reader) copy(buf []Event) (n int, missed uint64, err error) {
	l := r.log
	if oldest := l.oldest(); r.next < oldest {
		missed = oldest - r.next
		r.next = oldest
	}
	for n < len(buf) && r.next <= l.seq {
		buf[n] = l.ring[(r.next-1)%uint64(l.max)]
		n++
		r.next++
	}
	return n, missed, nil
}
