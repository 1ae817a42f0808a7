package load

import (
	"time"

	"golang.org/x/sys/unix"
)

// exchanger is a behaviour whose exchanges can begin at any time.
type exchanger interface {
	behaviour
	// begin begins an exchange of client i that was due at the given time.
	begin(l *loop, i int, due time.Time)
}

// openLoop makes exchanges due at a constant rate, whatever the proxy does. An exchange for which no client is free
// waits, and its time counts from the moment it was due. A closed loop sends less to a proxy that stalls, and so does
// not measure most of the stall.
type openLoop struct {
	behaviour exchanger
	interval  time.Duration
	next      time.Time   // when the next exchange is due
	idle      []int       // clients
	waiting   []time.Time // due times of the exchanges that wait for a client; the first is at head
	head      int
}

func newOpenLoop(b exchanger, spec Spec, begin time.Time) *openLoop {
	interval := time.Duration(float64(time.Second) * float64(spec.Loops) / spec.Rate)
	// Nothing is allocated while measuring, unless the proxy is so slow that it does not matter.
	return &openLoop{behaviour: b, interval: interval, next: begin.Add(-spec.Warm), idle: make([]int, 0, spec.Clients), waiting: make([]time.Time, 0, 1<<16)}
}

// due begins the exchanges that are due, and returns the time until the next one.
func (o *openLoop) due(l *loop) time.Duration {
	now := time.Now()
	for ; !o.next.After(now); o.next = o.next.Add(o.interval) {
		if n := len(o.idle); n > 0 {
			i := o.idle[0]
			o.idle = o.idle[:copy(o.idle, o.idle[1:])]
			o.behaviour.begin(l, i, o.next)
		} else {
			o.waiting = append(o.waiting, o.next)
		}
	}
	return o.next.Sub(now)
}

// free gives client i the exchange that has waited longest, if any.
func (o *openLoop) free(l *loop, i int) {
	if o.head == len(o.waiting) {
		o.waiting, o.head = o.waiting[:0], 0
		o.idle = append(o.idle, i)
		return
	}
	o.head++
	o.behaviour.begin(l, i, o.waiting[o.head-1])
}

// end counts the exchanges that still wait with their waiting time until now.
func (o *openLoop) end(l *loop, now time.Time) {
	for _, due := range o.waiting[o.head:] {
		if l.counts(due) {
			l.latencies.add(now.Sub(due))
		}
	}
}

// again makes client i, whose exchange has ended, begin the next one.
func (l *loop) again(e exchanger, i int, now time.Time) {
	if l.open != nil {
		l.open.free(l, i)
		return
	}
	e.begin(l, i, now)
}

// untilDue is poll until the next exchange is due; epoll_wait has a resolution of milliseconds.
func (o *openLoop) untilDue(l *loop, events []unix.EpollEvent) int {
	return pollFor(l.epoll, events, o.due(l))
}
