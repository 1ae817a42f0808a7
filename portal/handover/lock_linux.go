package handover

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	wordWho      = "who is it"
	wordHandOver = "hand over"
	stateHeld    = "held"
	stateWanted  = "wanted" // by somebody who still looks whether another has it
	wordSigned   = "signed"
	wordTaken    = "taken"
	wordReleased = "released"

	// patience is how long a holder waits for a successor, which installs thousands of
	// rules in it, and a successor for a holder that has not begun yet.
	patience = 30 * time.Second
	// sendTime is how long a successor may take to take all sockets.
	sendTime = 5 * time.Second
	// maxGuests is how many there may be whose rights a holder does not know yet. One
	// more sends the first of them away.
	maxGuests = 64
)

// Lock is the right to manage the portals.
type Lock struct {
	listener  *net.UnixListener
	name      string
	strangers []string
	held      atomic.Bool
	serving   sync.WaitGroup

	served chan struct{} // closed by Serve
	ended  chan struct{} // closed by Release
	end    func()
	holder Holder     // set before served is closed
	office sync.Mutex // held while speaking with a successor that has the rights
	taken  bool       // guarded by office

	mu     sync.Mutex
	guests []*net.UnixConn // in the order in which they came
}

// Acquire takes the lock. The error wraps ErrLocked, and says who has it, if
// another process does that has the rights for it. Who has not cannot keep anybody
// from having the lock; see Strangers.
func Acquire() (*Lock, error) {
	for try := 1; ; try++ {
		l, err := newLock()
		if err != nil {
			return nil, fmt.Errorf("locking the portals: %w", err)
		}
		// Only now that others see this one: of two, one at least finds the other.
		holder, strangers, err := look(l.name, wordWho)
		if err == nil && holder == nil {
			l.strangers = strangers
			l.held.Store(true)
			return l, nil
		}
		l.Release()
		if errors.Is(err, syscall.ENOPROTOOPT) {
			return nil, fmt.Errorf("%w, or another process does: before Linux 4.19 that cannot be told", ErrLocked)
		}
		if err != nil {
			return nil, fmt.Errorf("locking the portals: %w", err)
		}
		state, err := holder.state, fmt.Errorf("%w (%s)", ErrLocked, holder)
		holder.close()
		if state != stateWanted || try == 20 {
			return nil, err
		}
		time.Sleep(rand.N(100 * time.Millisecond)) // both of them may have given way
	}
}

// newLock listens, and answers who asks for this process's rights.
func newLock() (*Lock, error) {
	name := holderPrefix + random()
	listener, err := net.ListenUnix(network, &net.UnixAddr{Name: name, Net: network})
	if err != nil {
		return nil, err
	}
	l := &Lock{listener: listener, name: name, served: make(chan struct{}), ended: make(chan struct{})}
	l.end = sync.OnceFunc(func() { close(l.ended) })
	l.serving.Go(func() {
		for {
			conn, err := l.listener.AcceptUnix()
			if err != nil {
				return
			}
			l.come(conn)
			l.serving.Go(func() { l.answer(peer{conn}) })
		}
	})
	return l, nil
}

// Strangers says which processes claimed to have the lock, when it was taken, without
// the rights for it.
func (l *Lock) Strangers() []string { return l.strangers }

// Release gives the lock back. It may be called more than once.
func (l *Lock) Release() {
	l.listener.Close()
	l.end()
	l.mu.Lock()
	for _, conn := range l.guests {
		conn.Close()
	}
	l.mu.Unlock()
	l.serving.Wait()
}

// Serve answers successors until the lock is released, one after the other. It is
// called once at the most.
func (l *Lock) Serve(h Holder) {
	l.holder = h
	close(l.served)
}

// come and leave keep the list of those whose rights are not known.
func (l *Lock) come(conn *net.UnixConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.guests) == maxGuests {
		l.guests[0].Close()
		l.guests = l.guests[1:]
	}
	l.guests = append(l.guests, conn)
	select {
	case <-l.ended: // Release may have closed the others already
		conn.Close()
	default:
	}
}

func (l *Lock) leave(conn *net.UnixConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.guests = slices.DeleteFunc(l.guests, func(c *net.UnixConn) bool { return c == conn })
}

// answer speaks with somebody who has come.
func (l *Lock) answer(p peer) {
	defer p.Close()
	defer l.leave(p.UnixConn)
	p.within(answerTime)
	word, theirs, err := p.receiveChallenge()
	if err != nil {
		return
	}
	connection := p.RemoteAddr().String()
	_ = theirs.sign(connection, byHolder) // whoever asked sees whether it is signed
	theirs.close()
	ours, err := newChallenge(connection, bySuccessor)
	if err != nil {
		return
	}
	defer ours.close()
	state := stateWanted
	if l.held.Load() {
		state = stateHeld
	}
	if p.send(state, int(ours)) != nil || word != wordHandOver || p.receiveWord(wordSigned) != nil {
		return
	}
	if entitled, err := ours.signed(); err != nil || !entitled {
		return
	}
	l.leave(p.UnixConn)
	l.handOver(p)
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
	l.office.Lock()
	defer l.office.Unlock()
	if l.taken {
		return
	}
	sockets, resume, release, err := l.holder.HandOver()
	if err != nil {
		return
	}
	p.within(sendTime)
	if err = sendSockets(p, sockets); err == nil {
		p.within(patience)
		err = p.receiveWord(wordTaken)
	}
	if err != nil {
		resume()
		return
	}
	l.taken = true
	release()
	l.listener.Close()
	_ = p.send(wordReleased) // it sees the lock in any case
}
