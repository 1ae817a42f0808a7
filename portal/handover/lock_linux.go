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
	stateWanted  = "wanted" // by somebody who still looks whether another has it; the first by name goes before
	wordSigned   = "signed"
	wordMore     = "more"
	wordTaken    = "taken"
	wordReleased = "released"

	// patience is how long a holder waits for a successor, which installs thousands of
	// rules in it, and a successor for a holder that has not begun yet.
	patience = 30 * time.Second
	// sendTime is how long a successor may take to take all sockets.
	sendTime = 5 * time.Second
	// maxGuests is how many a holder speaks with at once. One more, who has waited for
	// guestTime, sends those away whose rights it does not know yet.
	maxGuests = 64
	guestTime = 20 * time.Millisecond
)

// Lock is the right to manage the portals.
type Lock struct {
	listener  *net.UnixListener
	name      string
	strangers []string
	held      atomic.Bool
	serving   sync.WaitGroup // the one who accepts

	// A place each for guests, and for those of other users while they are sent away.
	places, closing chan struct{}

	served  chan struct{} // closed by Serve
	ended   chan struct{} // closed by end: nobody is let in any more
	end     func()
	holder  Holder     // set before served is closed
	handing sync.Mutex // held while handing over to a successor that has the rights
	taken   bool       // guarded by handing

	mu     sync.Mutex
	guests map[peer]bool
}

// Acquire takes the lock. The error wraps ErrLocked, and says who has it, if
// another process does that runs as the same user and has the rights for it. Who has
// not cannot keep anybody from having the lock; see Strangers.
//
// left, unless it is nil, is a copy of the listener (see File) that an earlier process
// had, which has ended without giving the lock back. Whoever asked it is answered now.
// Acquire closes it.
func Acquire(left *os.File) (*Lock, error) {
	l, err := newLock(left)
	if err != nil {
		return nil, fmt.Errorf("locking the portals: %w", err)
	}
	// Only now that others see this one: of two, one at least finds the other.
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

// Hold is Acquire for who keeps the lock while no usher runs: it does not look for others,
// who were told all the time that it is held.
func Hold(left *os.File) (*Lock, error) {
	l, err := newLock(left)
	if err != nil {
		return nil, fmt.Errorf("locking the portals: %w", err)
	}
	l.held.Store(true)
	return l, nil
}

// newLock listens, by left if that is not nil, and answers who asks for this process's
// rights.
func newLock(left *os.File) (*Lock, error) {
	listener := listenAgain(left)
	if listener == nil {
		var err error
		if listener, err = net.ListenUnix(network, &net.UnixAddr{Name: holderPrefix + random(), Net: network}); err != nil {
			return nil, err
		}
	}
	l := newLockAt(listener)
	l.serving.Go(func() { l.accept(l.listener.AcceptUnix) })
	return l, nil
}

// listenAgain returns the listener that left is, or nil, and closes left.
func listenAgain(left *os.File) *net.UnixListener {
	if left == nil {
		return nil
	}
	defer left.Close()
	// Those who come from now on are to see this process (SO_PEERCRED).
	if fd, err := fdpass.Descriptor(left); err != nil || unix.Listen(fd, unix.SOMAXCONN) != nil {
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

// newLockAt does not accept yet.
func newLockAt(listener *net.UnixListener) *Lock {
	l := &Lock{
		listener: listener, name: listener.Addr().String(), served: make(chan struct{}), ended: make(chan struct{}),
		places: make(chan struct{}, maxGuests), closing: make(chan struct{}, maxGuests),
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

// accept lets guests in until the lock is released.
func (l *Lock) accept(next func() (*net.UnixConn, error)) {
	for {
		conn, err := next()
		if err != nil { // no descriptor is free, for instance; others still see this listener
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
			place = l.places
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

// File returns a copy of what the lock is, with which Acquire can go on where this
// process ends without releasing it: nil if it cannot be had. The caller closes it.
func (l *Lock) File() *os.File {
	file, err := l.listener.File()
	if err != nil {
		return nil
	}
	return file
}

// Strangers says which processes claimed to have the lock, when it was taken, without
// the rights for it.
func (l *Lock) Strangers() []string { return l.strangers }

// Release gives the lock back. It waits for a handover that is under way, and may be
// called more than once.
func (l *Lock) Release() {
	l.end()
	l.sendAway()
	l.handing.Lock()
	l.taken = true
	l.handing.Unlock()
}

// Serve answers successors until the lock is released, one after the other. It is
// called once at the most.
func (l *Lock) Serve(h Holder) {
	l.holder = h
	close(l.served)
}

// come and leave keep the list of those whose rights are not known.
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

// sendAway ends what those say whose rights are not known. An usher asks again.
func (l *Lock) sendAway() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.guests {
		p.within(0)
	}
}

// answer speaks with somebody who has come.
func (l *Lock) answer(p peer) {
	var entitled bool
	interrupted(func() { entitled = l.entitled(p) })
	l.leave(p)
	if entitled {
		l.handOver(p)
	}
}

// entitled shows this process's rights, and tells whether the other side wants to take
// over, and has the rights for it.
func (l *Lock) entitled(p peer) bool {
	word, theirs, err := p.receiveChallenge()
	if err != nil {
		return false
	}
	connection := p.RemoteAddr().String()
	_ = theirs.sign(connection, byHolder) // whoever asked sees whether it is signed
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

// handOver hands over to a successor that has the rights for it.
func (l *Lock) handOver(p peer) {
	select {
	case <-l.served:
	case <-l.ended:
		return
	case <-time.After(patience):
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
		p.within(patience)
		return p.receiveWord(answers...)
	}
	answer, err := hand(andMore(sockets), wordMore, wordTaken)
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
	_ = p.send(wordReleased) // it sees the lock in any case
}

// andMore yields sockets and, for a successor that understands it, what says that it may
// ask for more: those of versions before that use what they know the name of.
func andMore(sockets iter.Seq[Socket]) iter.Seq[Socket] {
	return func(yield func(Socket) bool) {
		for s := range sockets {
			if !yield(s) {
				return
			}
		}
		if file, err := Memory(wordMore); err == nil {
			yield(Socket{Name: wordMore, File: file})
		}
	}
}
