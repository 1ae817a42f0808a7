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
	Failed   Readiness = unix.EPOLLERR | unix.EPOLLHUP // always reported
)

// Modes of watching a descriptor.
const (
	// Once makes the loop call the handler when the descriptor becomes ready, but not again while it is (EPOLLET).
	Once Readiness = unix.EPOLLET
	// Shared is for a descriptor that several Pollers watch: an event need not be reported to all of them
	// (EPOLLEXCLUSIVE).
	Shared Readiness = unix.EPOLLEXCLUSIVE
)

// Handler handles the readiness of a descriptor. Ready must not block. The readiness may be over already.
type Handler interface {
	Ready(r Readiness)
}

// Poller is a loop that waits for many descriptors at once (epoll) and calls their handlers, one after the other, all
// in one goroutine. Data that only its handlers use needs no lock.
//
// Unless Once is set, readiness is level-triggered: the loop calls a handler that leaves bytes unread again in the next
// round, after the other handlers. A handler with much to do splits it into turns (see Later).
type Poller struct {
	epoll int
	wake  int // eventfd; readable while there are tasks
	done  chan struct{}

	processors int32 // GOMAXPROCS

	// Only the loop may use these.
	events   [eventsPerRound]unix.EpollEvent
	count    int // of events
	slots    []slot
	free     []int32
	roundEnd []func()
	later    []turner  // in the order of their turns
	looked   time.Time // time of the last check for ready descriptors, if turns waited then
	rested   time.Time // when other goroutines had the CPU

	mu     sync.Mutex
	tasks  []func()
	closed bool
}

// slot holds the handler of a descriptor. Its generation distinguishes events of that descriptor from events of an
// earlier one that had the slot.
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
	p := &Poller{epoll: -1, wake: -1, done: make(chan struct{}), processors: int32(runtime.GOMAXPROCS(0))}
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

// Do makes the loop call f soon, before it waits again. Calls keep their order. Any goroutine may call Do, the loop's
// included.
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

// Go is Do with a WaitGroup that is done when f has returned: at once if the loop has ended.
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

// signal makes the eventfd readable. An error means that it is readable already.
func (p *Poller) signal() {
	_, _ = unix.Write(p.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// OnRoundEnd makes the loop call f after the handlers of each round, to process collected data. Only the loop may call
// it.
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
// process has or had a copy of the descriptor, Remove must come first. The kernel removes a descriptor from the epoll
// set when its last copy is closed, and until then its events would wake the loop.
func (p *Poller) CloseFD(r Registration) {
	fd := int(p.slots[r.slot].fd)
	p.release(r.slot)
	closeFD(fd) // also removes it from the epoll set, as there is no copy
}

// closeFD is close(2) for a socket. It does not block, unless the socket was set to linger.
func closeFD(fd int) { _, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

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

// eventsPerRound limits how long a task waits for handlers.
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

// turner has so much to do that it is split into turns.
type turner interface{ turn() }

// perTurn is the number of pairs that a turner visits in one turn: about a millisecond, if all end.
const perTurn = 64

// Later makes the loop call t.turn once, after the handlers that are ready now.
func (p *Poller) Later(t turner) { p.later = append(p.later, t) }

// turnsAtLeast is the minimum time for turns between two checks for ready descriptors. (With 64 short requests beside
// 16 streams, an eighth of a millisecond does not reduce the p99 of the answers, and costs a third of the streams'
// rate.)
const turnsAtLeast = 2 * time.Millisecond

// Crowded reports whether more descriptors may be ready than epoll has returned, or the next check is some time away.
// Only the loop may call it.
func (p *Poller) Crowded() bool { return len(p.later) > 0 || p.count == len(p.events) }

// takeTurns calls waiting turners, for turnsAtLeast, or for as long as the handlers of the last round took: short work
// comes first, but not again and again.
func (p *Poller) takeTurns() {
	if len(p.later) == 0 {
		return
	}
	began := time.Now()
	last := turnsAtLeast
	if !p.looked.IsZero() {
		last = max(last, began.Sub(p.looked))
	}
	for len(p.later) > 0 && time.Since(began) < last {
		t := p.later[0]
		p.later[0], p.later = nil, p.later[1:]
		t.turn()
	}
	p.count = max(p.count, 1) // the loop was not idle
}

// wait returns the events of the next round. If there are none for a moment, it blocks.
func (p *Poller) wait() []unix.EpollEvent {
	p.looked = time.Time{}
	switch {
	case len(p.later) > 0:
		p.rest()
		p.take(0)
		p.looked = time.Now()
	case !p.poll():
		p.block()
	}
	return p.events[:p.count]
}

// block waits for events in a system call that Go's scheduler knows of: meanwhile the scheduler gives the loop's CPU to
// other goroutines and can stop the world. The loop keeps its thread.
//
// The alternative is to park the goroutine, with this epoll descriptor nested in the one of Go's poller. Each wake-up
// then goes through both, often on two threads, and EPOLLEXCLUSIVE (see Shared) has no effect, because no thread waits
// in this one.
func (p *Poller) block() {
	holding.Add(-1)
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.epoll), uintptr(unsafe.Pointer(&p.events)), uintptr(len(p.events)), ^uintptr(0), 0, 0)
	holding.Add(1)
	if p.count = int(n); errno != 0 {
		p.count = 0 // EINTR: the next round waits again
	}
}

// poll takes the available events, and reports whether there are any. If the last round had some, poll waits for up to
// a moment, without notice to Go's scheduler. To release the CPU and get it back costs more than most events. (With 64
// busy connections, blocking at once costs 8% of the rate, and p99 is 25% longer.)
//
// It does not call sched_yield(2): since Linux 6.6 the caller may wait for a whole time slice. (With 64 busy
// connections p99 was 25% longer.)
func (p *Poller) poll() bool {
	before := p.count
	if before != 1 && p.take(0) {
		return true
	}
	if before == 0 {
		return false
	}
	p.rest()
	return p.take(moment)
}

// moment is the time that the loop waits before it blocks, in ms. Other goroutines may have to wait for the CPU as
// long.
const moment = 1

// holding is the number of Pollers of this process that do not block. Each holds one of the CPUs of Go's scheduler
// (GOMAXPROCS).
var holding atomic.Int32

// rest lets other goroutines run, unless they could in the last moment. It is less frequent if another CPU is free:
// then only some timers wait for this one, and resting wakes a thread.
func (p *Poller) rest() {
	often := moment * time.Millisecond
	if holding.Load() < p.processors {
		often *= 4
	}
	if now := time.Now(); now.Sub(p.rested) > often {
		runtime.Gosched()
		p.rested = now
	}
}

// take takes the events that arrive within ms milliseconds.
func (p *Poller) take(ms uintptr) bool {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.epoll), uintptr(unsafe.Pointer(&p.events)), uintptr(len(p.events)), ms, 0, 0)
	if p.count = int(n); errno != 0 {
		p.count = 0 // EINTR: Go's scheduler needs the CPU
	}
	return p.count > 0
}

// tasksPerRound limits how long handlers wait for tasks.
const tasksPerRound = 8

// runTasks runs the functions from Do, tasksPerRound at a time, and reports whether the loop continues.
func (p *Poller) runTasks() bool {
	var count [8]byte
	_, _ = unix.Read(p.wake, count[:]) // readable, since it woke the loop
	p.mu.Lock()
	tasks, over := p.tasks, p.closed
	p.tasks = nil
	if len(tasks) > tasksPerRound {
		tasks, p.tasks, over = tasks[:tasksPerRound:tasksPerRound], tasks[tasksPerRound:], false
		p.signal()
	}
	p.mu.Unlock()
	for _, f := range tasks {
		f()
	}
	return !over
}
