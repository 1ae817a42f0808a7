package handover

import (
	"errors"
	"fmt"
	"iter"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal/fdpass"
)

const (
	wordWho      = "who is it"
	wordHandOver = "hand over"
	stateHeld    = "held"
	stateWanted  = "wanted" // still looking for other holders; of two, the name that sorts first has precedence
	wordSigned   = "signed"
	wordMore     = "more"
	wordTaken    = "taken"
	wordReleased = "released"

	// installTime is how long a holder waits for a successor to install its rules. Thousands of rules take seconds, or
	// more than a minute on a node with too few CPUs. If the successor exits, the holder notices at once.
	installTime = 2 * time.Minute
	// stepTimeout is how long a successor waits for each answer of a holder. It is also how long a successor may wait
	// for a new holder to call Serve, after its first rules.
	stepTimeout = 30 * time.Second
	// sendTime is how long a successor may take to receive all sockets.
	sendTime = 5 * time.Second
	// maxGuests is how many guests a holder serves at once. A guest is a process that has connected to the lock. When
	// another one has waited for guestTime, the holder disconnects all whose capability is not proved yet.
	maxGuests = 64
	guestTime = 20 * time.Millisecond
)

// Lock is the exclusive permission to manage the portals.
type Lock struct {
	listener  *net.UnixListener
	name      string
	strangers []string
	held      atomic.Bool
	serving   sync.WaitGroup // the accepting goroutine

	// slots limits guests of the same user. closing limits those of other users, which are disconnected at once.
	slots, closing chan struct{}

	served  chan struct{} // closed by Serve
	ended   chan struct{} // closed by end: no further guest is accepted
	end     func()
	holder  Holder     // set before served is closed
	handing sync.Mutex // held while handing over to a successor that has proved its capability
	taken   bool       // handed over or released; guarded by handing

	mu     sync.Mutex
	guests map[peer]bool
}

// Acquire takes the lock. If another process of the same user has it and proves its capability, the error wraps
// ErrLocked and names that process. A process without the capability cannot prevent Acquire, except before Linux 4.19
// and in gVisor; see Strangers.
//
// If an earlier process ended without releasing the lock, left is a copy of its listener (see File), otherwise nil.
// Acquire then answers the processes that wait in the listener's backlog. It closes left.
func Acquire(left *os.File) (*Lock, error) {
	l, err := newLock(left)
	if err != nil {
		return nil, err
	}
	// Look only after listening: if two processes start at the same time, at least one finds the other.
	holder, strangers, err := look(l.name, wordWho)
	switch {
	case holder != nil:
		err = fmt.Errorf("%w (%s)", ErrLocked, holder)
		holder.close()
	case errors.Is(err, syscall.ENOPROTOOPT):
		err = fmt.Errorf("%w, or another program does; cannot be determined before Linux 4.19 or in gVisor", ErrLocked)
	case err != nil:
		err = fmt.Errorf("locking the portals: %w", err)
	}
	if err != nil {
		l.Release()
		return nil, err
	}
	l.strangers = strangers
	l.held.Store(true)
	return l, nil
}

// Hold is Acquire without a search for other holders. The keeper calls it while no usher process runs: since left has
// stayed open, no other process has the lock. A successor calls Hold without left, before the holder releases the lock.
func Hold(left *os.File) (*Lock, error) {
	l, err := newLock(left)
	if err == nil {
		l.held.Store(true)
	}
	return l, err
}

// newLock returns a lock that proves this process's capability to processes that ask. It listens on left, or on a new
// socket if left is nil or unusable.
func newLock(left *os.File) (*Lock, error) {
	listener := listenAgain(left)
	if listener == nil {
		var err error
		if listener, err = net.ListenUnix(network, &net.UnixAddr{Name: holderPrefix + random(), Net: network}); err != nil {
			return nil, fmt.Errorf("locking the portals: %w", err)
		}
	}
	l := newLockAt(listener)
	l.serving.Go(func() { l.accept(l.listener.AcceptUnix) })
	return l, nil
}

// listenAgain returns a listener that uses left's socket, or nil if that fails. It closes left.
func listenAgain(left *os.File) *net.UnixListener {
	if left == nil {
		return nil
	}
	defer left.Close()
	// Other processes only find sockets that their own user made. Listen again, so that SO_PEERCRED returns this process
	// to those that connect from now on.
	var made unix.Stat_t
	if fd, err := fdpass.Descriptor(left); err != nil || unix.Fstat(fd, &made) != nil ||
		int(made.Uid) != os.Geteuid() || unix.Listen(fd, unix.SOMAXCONN) != nil {
		return nil
	}
	any, err := net.FileListener(left)
	if err != nil {
		return nil
	}
	listener, ok := any.(*net.UnixListener)
	if !ok || !strings.HasPrefix(listener.Addr().String(), holderPrefix) {
		any.Close()
		return nil
	}
	return listener
}

// newLockAt returns a lock that does not accept connections yet.
func newLockAt(listener *net.UnixListener) *Lock {
	l := &Lock{
		listener: listener, name: listener.Addr().String(), served: make(chan struct{}), ended: make(chan struct{}),
		slots: make(chan struct{}, maxGuests), closing: make(chan struct{}, maxGuests),
		guests: map[peer]bool{},
	}
	l.end = sync.OnceFunc(func() {
		close(l.ended)
		_ = l.listener.SetDeadline(time.Now()) // fails only once it is closed
		l.serving.Wait()
		interrupted(func() { l.listener.Close() })
	})
	return l
}

// accept accepts guests until the lock is released.
func (l *Lock) accept(next func() (*net.UnixConn, error)) {
	for {
		conn, err := next()
		if err != nil { // for instance, no descriptor is free; others still find this listener
			select {
			case <-l.ended:
				return
			case <-time.After(10 * time.Millisecond):
				continue
			}
		}
		p, place := peer{conn}, l.closing
		mine := p.sameUser()
		if mine {
			place = l.slots
		}
		for placed := false; !placed; {
			select {
			case place <- struct{}{}:
				placed = true
			case <-l.ended:
				go p.Close()
				return
			case <-time.After(guestTime):
				l.sendAway()
			}
		}
		if mine {
			l.come(p)
		}
		go func() {
			defer func() { <-place }()
			defer p.Close()
			if mine {
				l.answer(p)
			}
		}()
	}
}

// File returns a copy of the listener, or nil if it cannot be copied. If this process ends without releasing the lock,
// Acquire can continue with the copy. The caller closes it.
func (l *Lock) File() *os.File {
	file, err := l.listener.File()
	if err != nil {
		return nil
	}
	return file
}

// Strangers describes the processes that claimed the lock during Acquire, but did not prove their capability.
func (l *Lock) Strangers() []string { return l.strangers }

// Release releases the lock. It waits for a handover in progress, and may be called more than once.
func (l *Lock) Release() {
	l.end()
	l.sendAway()
	l.handing.Lock()
	l.taken = true
	l.handing.Unlock()
}

// Serve lets the lock hand over to successors, one after the other, until it is released. It returns at once. It is
// called at most once.
func (l *Lock) Serve(h Holder) {
	l.holder = h
	close(l.served)
}

// come and leave maintain the set of guests that have not proved their capability.
func (l *Lock) come(p peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.within(answerTime)
	l.guests[p] = true
}

func (l *Lock) leave(p peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.guests, p)
}

// sendAway disconnects the guests that have not proved their capability. Processes of usher among them reconnect; see
// look.
func (l *Lock) sendAway() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.guests {
		p.within(0)
	}
}

// answer serves one guest.
func (l *Lock) answer(p peer) {
	var entitled bool
	interrupted(func() { entitled = l.entitled(p) })
	l.leave(p)
	if entitled {
		l.handOver(p)
	}
}

// entitled proves this process's capability to a guest. It reports whether the guest wants to take over and has proved
// its own.
func (l *Lock) entitled(p peer) bool {
	word, theirs, err := p.receiveChallenge()
	if err != nil {
		return false
	}
	connection, err := p.name()
	if err != nil {
		theirs.close()
		return false
	}
	_ = theirs.sign(connection, byHolder) // the other side checks whether it is signed
	theirs.close()
	ours, err := newChallenge(connection, bySuccessor)
	if err != nil {
		return false
	}
	defer ours.close()
	state := stateWanted
	if l.held.Load() {
		state = stateHeld
	}
	if p.send(state, int(ours)) != nil || word != wordHandOver {
		return false
	}
	if _, err := p.receiveWord(wordSigned); err != nil {
		return false
	}
	signed, err := ours.signed()
	return err == nil && signed
}

// handOver hands over to a successor that has proved its capability.
func (l *Lock) handOver(p peer) {
	select {
	case <-l.served:
	case <-l.ended:
		return
	case <-time.After(stepTimeout):
		return
	}
	l.handing.Lock()
	defer l.handing.Unlock()
	if l.taken {
		return
	}
	sockets, more, resume, release, err := l.holder.HandOver()
	if err != nil {
		return
	}
	hand := func(sockets iter.Seq[Socket], answers ...string) (answer string, err error) {
		p.within(sendTime)
		if err = sendSockets(p, sockets); err != nil {
			return "", err
		}
		p.within(installTime)
		return p.receiveWord(answers...)
	}
	answer, err := hand(sockets, wordMore, wordTaken)
	if answer == wordMore {
		_, err = hand(more, wordTaken)
	}
	if err != nil {
		resume()
		return
	}
	l.taken = true
	release()
	l.end()
	_ = p.send(wordReleased) // fails only if the successor has given up or exited; its Take then fails as well
}
