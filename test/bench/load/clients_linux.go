package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Lines that a process with clients prints; Ended is followed by a Result as JSON.
const (
	Began = "began"
	Ended = "ended"
)

// Run makes the load of spec. It announces the start and end on out, and then writes the result. Held
// connections are closed when in ends.
func Run(spec Spec, in io.Reader, out io.Writer) error {
	if err := spec.check(); err != nil {
		return err
	}
	if spec.Kind == Hold {
		return hold(spec, in, out)
	}
	// The loops occupy their threads completely; one more is for this goroutine.
	runtime.GOMAXPROCS(spec.Loops + 1)
	debug.SetGCPercent(-1) // nothing is allocated, and the loops would not stop for a collection
	loops, err := newLoops(spec)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	for _, l := range loops {
		running.Go(l.run)
	}
	time.Sleep(time.Until(loops[0].begin))
	fmt.Fprintln(out, Began)
	time.Sleep(time.Until(loops[0].end))
	fmt.Fprint(out, Ended, " ")
	running.Wait()
	result := Result{Seconds: spec.For.Seconds()}
	var all latencies
	for _, l := range loops {
		err = errors.Join(err, l.err)
		result.Done += l.done
		result.Errors += l.errors
		result.Lost += l.lost
		all.merge(&l.latencies)
	}
	if err != nil {
		return err
	}
	result.P50, result.P99, result.P999 = all.percentile(0.5), all.percentile(0.99), all.percentile(0.999)
	return json.NewEncoder(out).Encode(result)
}

// loop is one thread with its share of the clients.
type loop struct {
	spec       Spec
	to         *address
	begin, end time.Time
	epoll      int
	clients    []client
	behaviour  behaviour
	open       *openLoop // nil: a client begins an exchange when its previous one ends
	buffer     []byte

	done, errors, lost int64
	latencies          latencies
	err                error // why it gave up
}

// client is a client's socket and the state of its exchange.
type client struct {
	fd      int
	missing int       // outstanding bytes of the answer, or datagrams
	since   time.Time // when the exchange began
}

// behaviour is the kind of exchange of a loop's clients. Its methods take a client's number.
type behaviour interface {
	start(l *loop, i int)
	ready(l *loop, i int, events uint32)
	// tick is called several times per second.
	tick(l *loop)
}

func newLoops(spec Spec) ([]*loop, error) {
	to, err := newAddress(spec.To)
	if err != nil {
		return nil, err
	}
	spec.Loops = min(spec.Loops, spec.Clients)
	begin := time.Now().Add(spec.Warm)
	var loops []*loop
	for n := range spec.Loops {
		l := &loop{spec: spec, to: to, begin: begin, end: begin.Add(spec.For), buffer: make([]byte, max(spec.Size, 2048))}
		// The first loops have one client more if the division has a remainder.
		l.clients = make([]client, (spec.Clients+spec.Loops-1-n)/spec.Loops)
		switch spec.Kind {
		case CRR:
			l.behaviour = crr{}
		case RR:
			l.behaviour = rr{}
		case Stream:
			l.behaviour = stream{}
		case UDP:
			l.behaviour = udp{}
		default:
			return nil, fmt.Errorf("field Kind: %q is none that there is", spec.Kind)
		}
		if e, exchanges := l.behaviour.(exchanger); exchanges && spec.Rate > 0 {
			l.open = newOpenLoop(e, spec, begin)
		}
		if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
			return nil, err
		}
		loops = append(loops, l)
	}
	return loops, nil
}

// run is the main function of the thread. The process ends with its last loop, and the kernel closes the sockets.
func (l *loop) run() {
	runtime.LockOSThread()
	// Wake up when a wait is due, not up to 50 µs later.
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		l.err = err
		return
	}
	for i := range l.clients {
		l.behaviour.start(l, i)
	}
	const ticks = 50 * time.Millisecond
	next := time.Now().Add(ticks)
	events := make([]unix.EpollEvent, 64)
	for l.err == nil {
		var n int
		if l.open != nil {
			n = l.open.untilDue(l, events)
		} else {
			n = poll(l.epoll, events, ticks)
		}
		for _, e := range events[:n] {
			l.behaviour.ready(l, int(e.Fd), e.Events)
		}
		if now := time.Now(); now.After(next) {
			l.behaviour.tick(l)
			if now.After(l.end) {
				if l.open != nil {
					l.open.end(l, now)
				}
				return
			}
			next = now.Add(ticks)
		}
	}
}

// counts reports whether an exchange completed now is part of the result.
func (l *loop) counts(now time.Time) bool { return now.After(l.begin) && !now.After(l.end) }

// exchanged counts client i's exchange, and returns the current time.
func (l *loop) exchanged(i int) time.Time {
	now := time.Now()
	if l.counts(now) {
		l.done++
		l.latencies.add(now.Sub(l.clients[i].since))
	}
	return now
}

// tooMany is the number of errors that end a measurement: it would measure failures.
const tooMany = 1000

// failed counts an error, and gives up when there are too many.
func (l *loop) failed(errno syscall.Errno) {
	if l.errors++; l.errors >= tooMany {
		l.err = fmt.Errorf("%s to %s: %d errors, the last: %w", l.spec.Kind, l.spec.To, l.errors, errno)
	}
}

// stop gives up because of an error of a system call.
func (l *loop) stop(step string, errno syscall.Errno) {
	l.err = fmt.Errorf("%s to %s: %s: %w", l.spec.Kind, l.spec.To, step, errno)
}
