package handover

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	network = "unixpacket"
	// The names of holders' listeners, and of successors' ends of connections, begin with these prefixes. A random part
	// follows, so that no other process can take the name first.
	holderPrefix    = "@usher-portal/"
	successorPrefix = "@usher-successor/"

	// answerTime is how long a guest may take to prove its capability. lookTime is how long all processes with a
	// holder's name may take together.
	answerTime = 5 * time.Second
	lookTime   = 5 * time.Second
	// lookAgain is the interval for asking again processes that could not be reached or were undecided.
	lookAgain = 10 * time.Millisecond
)

func random() string { return strings.ToLower(rand.Text()) }

// contact is a connection to a process that listens under a holder's name.
type contact struct {
	peer
	name   string    // of this process's end of the connection
	ours   challenge // for the holder to sign
	theirs challenge // from the holder, for this process to sign; -1 until it has arrived
	state  string    // stateHeld or stateWanted; valid once the holder has proved its capability
}

func (c *contact) close() {
	c.ours.close()
	if c.theirs >= 0 {
		c.theirs.close()
	}
	c.Close()
}

// Claimed reports whether any process listens under a holder's name: usher, or a keeper that will restart it. Claimed
// does not connect to the process, so the claim is not verified.
func Claimed() bool {
	names, err := holders()
	return err == nil && len(names) > 0
}

// claimInterval is the interval at which Unclaimed checks.
const claimInterval = 2 * time.Second

// Unclaimed returns a channel that is closed when two checks in a row find no holder. A process that has handed over
// and still runs uses it: its successor may have ended.
func Unclaimed() <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for misses := 0; misses < 2; {
			time.Sleep(claimInterval)
			start := time.Now()
			holder, _, err := look("", wordWho)
			if misses++; err != nil || holder != nil || time.Since(start) >= lookTime { // or one that does not answer
				misses = 0
			}
			if holder != nil {
				holder.close()
			}
		}
	}()
	return gone
}

// look sends word to all processes that listen under a holder's name, except own, and asks them to prove their
// capability. It returns the first one that proves it and either has the lock or has precedence over own; nil if there
// is none. strangers describes the processes that did not prove it. look takes at most lookTime.
func look(own, word string) (holder *contact, strangers []string, err error) {
	type answer struct {
		name    string
		contact *contact
		err     error
	}
	answers, done := make(chan answer), make(chan struct{})
	defer close(done)
	known := map[string]bool{own: true} // names listed before, and own
	open := map[string]string{}         // descriptions of undecided processes, by name
	looking := map[string]string{}      // those that proved their capability, but still look for holders themselves
	var waiting []string                // names to ask
	list := true
	end := time.Now().Add(lookTime)
	timeout, tick := time.After(lookTime), time.NewTicker(lookAgain)
	defer tick.Stop()
	askAll := func() error {
		if list {
			names, err := holders()
			if err != nil {
				return fmt.Errorf("looking for the usher process that manages the portals: %w", err)
			}
			for _, name := range names {
				if !known[name] {
					known[name], open[name] = true, "a process that accepts no connections"
					waiting = append(waiting, name)
				}
			}
			list = false
		}
		todo := waiting
		waiting = nil
		for _, name := range todo {
			// Connect in this thread: it may be in another network namespace than other threads.
			a, err := approach(name)
			switch {
			case errors.Is(err, syscall.EAGAIN): // its backlog is full
				waiting = append(waiting, name)
				continue
			case errors.Is(err, syscall.ECONNREFUSED):
				delete(open, name)
				delete(looking, name)
				list = true // it has exited, perhaps after a handover to another process
				continue
			case errors.Is(err, syscall.EPROTOTYPE), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
				delete(open, name) // it is not usher
				continue
			case err != nil:
				return fmt.Errorf("asking a process that may manage the portals: %w", err)
			}
			if open[name] = a.String(); !a.sameUser() {
				strangers = append(strangers, open[name])
				delete(open, name)
				go a.close()
				continue
			}
			_ = a.SetDeadline(end)
			go func() {
				err := a.ask(word)
				select {
				case answers <- answer{name, a, err}:
				case <-done:
					if err == nil {
						a.close()
					}
				}
			}()
		}
		return nil
	}
	err = askAll()
	for late := false; err == nil && holder == nil && (list || len(open) > 0) && !late; {
		select {
		case <-tick.C:
			err = askAll()
		case <-timeout:
			late = true
		case a := <-answers:
			delete(looking, a.name)
			switch {
			case errors.Is(a.err, syscall.ENOPROTOOPT): // before Linux 4.19
				err = a.err
			case errors.Is(a.err, io.EOF), errors.Is(a.err, syscall.EPIPE), errors.Is(a.err, syscall.ECONNRESET):
				waiting = append(waiting, a.name) // approach then detects if it has exited
			case a.err != nil:
				strangers = append(strangers, open[a.name])
				delete(open, a.name)
			case a.contact.state == stateHeld || a.name < own:
				holder = a.contact
			default: // It still searches. When its search ends, it has either given way to this process or taken the lock: ask again.
				looking[a.name] = a.contact.String()
				waiting = append(waiting, a.name)
				go a.contact.close()
			}
		}
	}
	if err == nil && holder == nil {
		for _, who := range looking {
			err = fmt.Errorf("%w (possibly %s)", ErrLocked, who)
		}
		strangers = slices.AppendSeq(strangers, maps.Values(open))
	}
	slices.Sort(strangers)
	return holder, slices.Compact(strangers), err
}

// holders returns the names of all listeners that begin with holderPrefix.
func holders() (names []string, err error) {
	f, err := os.Open("/proc/thread-self/net/unix")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// Num RefCount Protocol Flags Type St Inode Path (unix_seq_show in
		// net/unix/af_unix.c); 10000 is __SO_ACCEPTCON.
		fields := strings.Fields(lines.Text())
		if len(fields) == 8 && fields[3] == "00010000" && strings.HasPrefix(fields[7], holderPrefix) {
			names = append(names, fields[7])
		}
	}
	return names, lines.Err()
}

// approach connects to the process that listens under a name.
func approach(name string) (*contact, error) {
	c := &contact{name: successorPrefix + random(), theirs: -1}
	conn, err := net.DialUnix(network, &net.UnixAddr{Name: c.name, Net: network}, &net.UnixAddr{Name: name, Net: network})
	if err != nil {
		return nil, err
	}
	c.peer = peer{conn}
	if c.ours, err = newChallenge(c.name, byHolder); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// ask asks the process to prove its capability. If it does not, a goroutine closes the contact, since that may take
// long.
func (c *contact) ask(word string) (err error) {
	interrupted(func() {
		if err = c.send(word, int(c.ours)); err != nil {
			return
		}
		if c.state, c.theirs, err = c.receiveChallenge(); err != nil {
			return
		}
		has, failed := c.ours.signed()
		if err = failed; err == nil && !has {
			err = errors.New("the process did not prove that it has CAP_NET_ADMIN")
		}
	})
	if err != nil {
		go c.close()
	}
	return err
}
