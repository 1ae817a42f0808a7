package forward

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Readiness is a set of events of a descriptor.
type Readiness uint32

// Values of Readiness; see epoll_ctl(2).
const (
	Readable Readiness = unix.EPOLLIN
	Writable Readiness = unix.EPOLLOUT
	HungUp   Readiness = unix.EPOLLRDHUP               // the peer sends no more
	Urgent   Readiness = unix.EPOLLPRI                 // an urgent byte has arrived
	Failed   Readiness = unix.EPOLLERR | unix.EPOLLHUP // an error, or both sides have ended; always reported
)

// Modes of watching a descriptor.
const (
	// Once makes the loop call the handler when the descriptor becomes ready, but not while it stays ready (EPOLLET).
	Once Readiness = unix.EPOLLET
	// Shared is for a descriptor that several Pollers watch: an event need not be reported to all of them
	// (EPOLLEXCLUSIVE).
	Shared Readiness = unix.EPOLLEXCLUSIVE
)

// Handler handles the readiness of a descriptor. Ready must not block. The descriptor may no longer be ready.
type Handler interface {
	Ready(r Readiness)
}

// Poller is an event loop: one goroutine waits for many descriptors at once (epoll), and calls their handlers one after
// the other. Data that only its handlers use needs no lock. "The loop" is this goroutine.
//
// Unless Once is set, readiness is level-triggered. If a handler leaves bytes unread, the loop calls it again in the
// next round, after the other handlers. A handler with much to do splits the work into turns (see Later).
type Poller struct {
	epoll int
	wake  int // eventfd; readable while there are tasks
	done  chan struct{}

	maxProcs int32 // GOMAXPROCS at the start

	// Only the loop may use these.
	events        [eventsPerRound]unix.EpollEvent
	count         int // number of events of this round
	slots         []slot
	free          []int32
	roundEnd      []func()
	later         []turner  // waiting for a turn, the next one first
	handlersStart time.Time // start of this round's handlers, if turners waited then; else zero
	rested        time.Time // the last time that yield let other goroutines run

	mu     sync.Mutex
	tasks  []func()
	closed bool
}

// slot holds the handler of a descriptor. The generation distinguishes events of this descriptor from events of an
// earlier one in the same slot.
type slot struct {
	handler    Handler
	fd         int32
	generation int32
}

// Registration identifies a descriptor that a Poller watches.
type Registration struct{ slot int32 }

// ErrPollerClosed is the error of [Poller.Do] after Close.
var ErrPollerClosed = errors.New("the poller is closed")

// wakeSlot is the slot number of the eventfd.
const wakeSlot = -1

// NewPoller returns a Poller whose loop runs until Close. It takes two descriptors.
func NewPoller() (*Poller, error) {
	p := &Poller{epoll: -1, wake: -1, done: make(chan struct{}), maxProcs: int32(runtime.GOMAXPROCS(0))}
	if err := p.open(); err != nil {
		if p.epoll >= 0 {
			unix.Close(p.epoll)
		}
		if p.wake >= 0 {
			unix.Close(p.wake)
		}
		return nil, err
	}
	go p.loop()
	return p, nil
}

func (p *Poller) open() (err error) {
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll_create1: %w", err)
	}
	if p.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	if err = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, p.wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: wakeSlot}); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

// Do makes the loop call f soon, before it blocks again. Calls keep their order. Any goroutine, even the loop, may call
// Do.
func (p *Poller) Do(f func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrPollerClosed
	}
	p.tasks = append(p.tasks, f)
	if len(p.tasks) == 1 {
		p.signal()
	}
	return nil
}

// Go calls Do with f. It also makes done.Wait wait until f has returned. If the loop has ended, f is not called, and
// there is nothing to wait for.
func (p *Poller) Go(done *sync.WaitGroup, f func()) {
	done.Add(1)
	err := p.Do(func() {
		f()
		done.Done()
	})
	if err != nil {
		done.Done()
	}
}

// Call makes the loop call f, and returns when f has returned.
func (p *Poller) Call(f func()) {
	var done sync.WaitGroup
	p.Go(&done, f)
	done.Wait()
}

// signal makes the eventfd readable. An error means that it is readable already.
func (p *Poller) signal() {
	_, _ = unix.Write(p.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// OnRoundEnd makes the loop call f after the handlers of each round, for example to process data that they have
// collected. Only the loop may call it.
func (p *Poller) OnRoundEnd(f func()) { p.roundEnd = append(p.roundEnd, f) }

// Add watches fd, which must be non-blocking, for the events in want. Only the loop may call it.
func (p *Poller) Add(fd int, want Readiness, h Handler) (Registration, error) {
	var at int32
	if n := len(p.free); n > 0 {
		at, p.free = p.free[n-1], p.free[:n-1]
	} else {
		at = int32(len(p.slots))
		p.slots = append(p.slots, slot{})
	}
	s := &p.slots[at]
	s.handler, s.fd = h, int32(fd)
	event := unix.EpollEvent{Events: uint32(want), Fd: at, Pad: s.generation}
	if err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		p.release(at)
		return Registration{}, fmt.Errorf("epoll_ctl: %w", err)
	}
	return Registration{at}, nil
}

// Watch changes the events that a descriptor is watched for. Only the loop may call it.
func (p *Poller) Watch(r Registration, want Readiness) {
	s := &p.slots[r.slot]
	// It only fails for a descriptor that is not watched, but this one is.
	_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_MOD, int(s.fd), &unix.EpollEvent{Events: uint32(want), Fd: r.slot, Pad: s.generation})
}

// Handle makes h the handler of a descriptor that is already watched. Only the loop may call it.
func (p *Poller) Handle(r Registration, h Handler) { p.slots[r.slot].handler = h }

// Remove stops watching the descriptor. Only the loop may call it, once for each Add.
func (p *Poller) Remove(r Registration) {
	// It only fails for a descriptor that is not watched, but this one is.
	_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, int(p.slots[r.slot].fd), &unix.EpollEvent{})
	p.release(r.slot)
}

// CloseFD stops watching the descriptor, and closes it. Only the loop may call it, once for each Add. If another
// process may have a copy of the descriptor, use Remove and close instead. The kernel keeps a descriptor in the epoll
// set until the last copy is closed, and its events would wake the loop.
func (p *Poller) CloseFD(r Registration) {
	fd := uintptr(p.slots[r.slot].fd)
	p.release(r.slot)
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, fd, 0, 0) // also removes fd from the epoll set, since there is no copy
}

func (p *Poller) release(at int32) {
	s := &p.slots[at]
	s.handler, s.fd = nil, -1
	s.generation++
	p.free = append(p.free, at)
}

// Close ends the loop and returns when it has ended. Watched descriptors stay open. The loop itself must not call it.
func (p *Poller) Close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		p.signal()
	}
	p.mu.Unlock()
	<-p.done
}

// eventsPerRound is the maximum number of events of a round. It limits how long a function passed to Do waits for
// handlers.
const eventsPerRound = 128

func (p *Poller) loop() {
	defer close(p.done)
	holding.Add(1)
	defer holding.Add(-1)
	defer unix.Close(p.wake)
	defer unix.Close(p.epoll)
	for {
		for _, event := range p.wait() {
			if event.Fd == wakeSlot {
				if !p.runTasks() {
					return
				}
				continue
			}
			if int(event.Fd) >= len(p.slots) {
				continue
			}
			if s := &p.slots[event.Fd]; s.handler != nil && s.generation == event.Pad {
				s.handler.Ready(Readiness(event.Events))
			}
		}
		for _, f := range p.roundEnd {
			f()
		}
		p.takeTurns()
	}
}

// turner has so much work that it does it in several turns.
type turner interface{ turn() }

// perTurn is the number of pairs, slots or timed operations that a turner handles in one turn. A turn takes about 1 ms
// if each of them ends a pair.
const perTurn = 64

// Later makes the loop call t.turn once, after the handlers that are ready now.
func (p *Poller) Later(t turner) { p.later = append(p.later, t) }

// turnsAtLeast is the minimum time that waiting turners get between two checks for ready descriptors. (With 16 streams
// and 64 concurrent short requests, 125 µs did not reduce the requests' p99, and cost a third of the streams' rate.)
const turnsAtLeast = 2 * time.Millisecond

// Crowded reports whether more descriptors may be ready than epoll has returned, or turns delay the next check. Only
// the loop may call it.
func (p *Poller) Crowded() bool { return len(p.later) > 0 || p.count == len(p.events) }

// takeTurns calls waiting turners for turnsAtLeast. If turners were already waiting when this round began, they get at
// least as much time as its handlers took. So short work comes first, but cannot starve the turns.
func (p *Poller) takeTurns() {
	if len(p.later) == 0 {
		return
	}
	began := time.Now()
	last := turnsAtLeast
	if !p.handlersStart.IsZero() {
		last = max(last, began.Sub(p.handlersStart))
	}
	for len(p.later) > 0 && time.Since(began) < last {
		t := p.later[0]
		p.later[0], p.later = nil, p.later[1:]
		t.turn()
	}
	p.count = max(p.count, 1) // the loop was not idle
}

// wait returns the events of the next round. If turners wait, it does not block, and may return no events. Otherwise,
// if no event arrives within a moment, it blocks.
func (p *Poller) wait() []unix.EpollEvent {
	p.handlersStart = time.Time{}
	switch {
	case len(p.later) > 0:
		p.yield()
		p.take(0)
		p.handlersStart = time.Now()
	case !p.poll():
		p.block()
	}
	return p.events[:p.count]
}

// block waits for events in a system call that Go's scheduler knows of. Meanwhile the scheduler gives the loop's CPU to
// other goroutines, and can stop the world. The loop keeps its thread.
//
// The alternative is to park the goroutine, with this epoll descriptor watched by the epoll descriptor of Go's own
// poller. Then each wake-up passes through both, often on two threads, and EPOLLEXCLUSIVE (see Shared) has no effect,
// because no thread waits on this descriptor.
func (p *Poller) block() {
	holding.Add(-1)
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.epoll), uintptr(unsafe.Pointer(&p.events)), uintptr(len(p.events)), ^uintptr(0), 0, 0)
	holding.Add(1)
	if p.count = int(n); errno != 0 {
		p.count = 0 // EINTR: the next round waits again
	}
}

// poll takes the available events, and reports whether there are any. If the last round had some, poll waits for more
// for up to a moment. Go's scheduler does not know of this raw system call: to release the CPU and get it back costs
// more than handling most events. (With 64 busy connections, blocking at once reduced the rate by 8%, and p99 was 25%
// longer.)
//
// It does not call sched_yield(2): since Linux 6.6 the caller may wait for a whole time slice. (With 64 busy
// connections, p99 was 25% longer.)
func (p *Poller) poll() bool {
	before := p.count
	if before != 1 && p.take(0) {
		return true
	}
	if before == 0 {
		return false
	}
	p.yield()
	return p.take(moment)
}

// moment is the time in ms that the loop waits for events before it blocks. Other goroutines may have to wait for the
// CPU that long.
const moment = 1

// holding is the number of Pollers of this process that are not in the method block. Each of them holds one of the CPUs
// of Go's scheduler (GOMAXPROCS).
var holding atomic.Int32

// yield lets other goroutines run, unless it did so within the last moment. If another CPU is free, it does so only a
// quarter as often. The benefit is smaller then: other goroutines can run on the free CPU, and only the timers that Go
// keeps for this CPU wait. The cost is higher, because resting wakes a thread.
func (p *Poller) yield() {
	often := moment * time.Millisecond
	if holding.Load() < p.maxProcs {
		often *= 4
	}
	if now := time.Now(); now.Sub(p.rested) > often {
		runtime.Gosched()
		p.rested = now
	}
}

// take takes the available events, or the first ones within ms milliseconds, and reports whether there are any.
func (p *Poller) take(ms uintptr) bool {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.epoll), uintptr(unsafe.Pointer(&p.events)), uintptr(len(p.events)), ms, 0, 0)
	if p.count = int(n); errno != 0 {
		p.count = 0 // EINTR: Go's scheduler wants the CPU
	}
	return p.count > 0
}

// A round runs up to tasksPerRound of the functions passed to Do, which limits how long handlers wait for them. If
// turners wait, each round lasts turnsAtLeast or longer, so a single stream would limit the loop to 4,000 functions per
// second. Then a round continues with functions until tasksAtLeast has passed.
const (
	tasksPerRound = 8
	tasksAtLeast  = turnsAtLeast / 2
)

// runTasks runs functions passed to Do, and reports whether the loop continues.
func (p *Poller) runTasks() bool {
	var count [8]byte
	_, _ = unix.Read(p.wake, count[:]) // readable, since it woke the loop
	for start := time.Now(); ; {
		p.mu.Lock()
		tasks, over := p.tasks, p.closed
		p.tasks = nil
		if len(tasks) > tasksPerRound {
			tasks, p.tasks, over = tasks[:tasksPerRound:tasksPerRound], tasks[tasksPerRound:], false
		}
		p.mu.Unlock()
		for _, f := range tasks {
			f()
		}
		switch {
		case len(tasks) < tasksPerRound:
			return !over
		case len(p.later) == 0 || time.Since(start) >= tasksAtLeast:
			p.signal()
			return true
		}
	}
}
