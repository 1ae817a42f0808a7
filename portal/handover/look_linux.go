package handover

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	network = "unixpacket"
	// The names of holders' listeners and of successors' ends begin so. Behind that
	// is what nobody can guess, and so nobody can take first.
	holderPrefix    = "@usher-portal/"
	successorPrefix = "@usher-successor/"

	// answerTime is how long a holder may take to show its rights, and lookTime, how
	// long all who have a holder's name may take together.
	answerTime = 5 * time.Second
	lookTime   = 20 * time.Second
	// asked is how many are asked at once.
	asked = 64
)

func random() string { return strings.ToLower(rand.Text()) }

// found is a holder, which has shown its rights.
type found struct {
	peer
	name      string    // of this process's end
	challenge challenge // that the holder gave this process to sign
	state     string    // stateHeld or stateWanted
}

func (f *found) close() {
	f.challenge.close()
	f.Close()
}

// look asks all who have a holder's name, but the one called own, with word for their
// rights. It returns the first who has them, or nil, and who has not.
func look(own, word string) (holder *found, strangers []string, err error) {
	names, err := holders()
	if err != nil {
		return nil, nil, fmt.Errorf("looking for an usher that manages the portals: %w", err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == own })
	type answer struct {
		found    *found
		stranger string
		err      error
	}
	for end := time.Now().Add(lookTime); len(names) > 0 && holder == nil && time.Now().Before(end); {
		some := names[:min(asked, len(names))]
		names = names[len(some):]
		answers := make(chan answer, len(some))
		waiting := 0
		for _, name := range some {
			// In this thread, since that may be in a network namespace of its own.
			a, err := approach(name)
			if err != nil {
				continue // it is gone, or lets nobody in
			}
			waiting++
			go func() {
				who := a.String()
				f, err := a.ask(word)
				answers <- answer{f, who, err}
			}()
		}
		for ; waiting > 0 && holder == nil && err == nil; waiting-- {
			a := <-answers
			switch {
			case errors.Is(a.err, syscall.ENOPROTOOPT):
				err = a.err // before Linux 4.19
			case a.found != nil:
				holder = a.found
			case !errors.Is(a.err, errGone):
				strangers = append(strangers, a.stranger)
			}
		}
		go func() { // the others
			for ; waiting > 0; waiting-- {
				if a := <-answers; a.found != nil {
					a.found.close()
				}
			}
		}()
	}
	return holder, strangers, err
}

// holders returns the names of listeners that begin as those of holders do.
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

// errGone is that somebody has ended while it was asked.
var errGone = errors.New("it is gone")

// approached is somebody who has a holder's name.
type approached struct {
	peer
	name      string
	challenge challenge // for the holder to sign
}

// approach connects to who listens under a name.
func approach(name string) (*approached, error) {
	a := &approached{name: successorPrefix + random()}
	end := time.Now().Add(answerTime)
	for {
		conn, err := net.DialUnix(network, &net.UnixAddr{Name: a.name, Net: network}, &net.UnixAddr{Name: name, Net: network})
		if err == nil {
			a.peer = peer{conn}
			break
		}
		// Somebody may keep its backlog full for a moment.
		if !errors.Is(err, syscall.EAGAIN) || time.Now().After(end) {
			return nil, err
		}
		time.Sleep(10 * time.Millisecond)
	}
	var err error
	if a.challenge, err = newChallenge(a.name, byHolder); err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

// ask asks for the rights of who was approached, and returns who has them.
func (a *approached) ask(word string) (*found, error) {
	defer a.challenge.close()
	f := &found{peer: a.peer, name: a.name, challenge: -1}
	err := func() (err error) {
		f.within(answerTime)
		if err := f.send(word, int(a.challenge)); err != nil {
			return err
		}
		if f.state, f.challenge, err = f.receiveChallenge(); err != nil {
			return err
		}
		has, err := a.challenge.signed()
		if err == nil && !has {
			err = errors.New("it has not the rights of an usher")
		}
		return err
	}()
	if err == nil {
		return f, nil
	}
	if f.challenge >= 0 {
		f.challenge.close()
	}
	f.Close()
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		err = errors.Join(errGone, err)
	}
	return nil, err
}
