package handover

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
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

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
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
	// maxContacts is how many processes look asks at once. Each needs a thread; see interrupted.
	maxContacts = 64
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
	all, err := listeners()
	return err == nil && len(all) > 0
}

// claimInterval is the interval at which Unclaimed checks.
const claimInterval = 2 * time.Second

// Unclaimed returns a channel that is closed when two checks in a row find no holder. With it, a process that has
// handed over and still runs detects the end of its successor.
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

// look sends word to all processes of this user that listen under a holder's name, except own, and asks them to prove
// their capability. It returns the first one that proves it and either has the lock or has precedence over own; nil if
// there is none. strangers describes the processes that did not prove it. look takes at most lookTime.
//
// Sockets of other users are skipped without connecting to them: however many they are, and whatever their processes
// do, they cannot delay look. Before Linux 5.3 or without the kernel's socket diagnosis, the socket's user is only known
// after connecting.
//
// If this user has many such sockets, look asks maxContacts processes at once, and each has so little time that there
// is enough for all.
func look(own, word string) (holder *contact, strangers []string, err error) {
	type answer struct {
		name    string
		contact *contact
		err     error
	}
	answers := make(chan answer, maxContacts)
	asking := 0 // answers that are still to come
	defer func() {
		go func() {
			for range asking {
				if a := <-answers; a.err == nil {
					a.contact.close()
				}
			}
		}()
	}()
	known := map[string]bool{own: true} // names listed before, and own
	open := map[string]string{}         // descriptions of undecided processes, by name
	looking := map[string]string{}      // those that proved their capability, but still look for holders themselves
	silent := 0                         // the number of processes that did not prove it in time
	var waiting, later []string         // names to ask now, and at the next tick
	list := true
	timeout, tick := time.After(lookTime), time.NewTicker(lookAgain)
	defer tick.Stop()
	listNew := func() error {
		list = false
		all, err := listeners()
		if err != nil {
			return fmt.Errorf("looking for the usher process that manages the portals: %w", err)
		}
		for _, l := range all {
			if known[l.name] {
				continue
			}
			known[l.name] = true
			if l.user != unknownUser && l.user != os.Geteuid() {
				strangers = append(strangers, fmt.Sprintf("a process of user %d", l.user))
				continue
			}
			open[l.name] = "a process that accepts no connections"
			waiting = append(waiting, l.name)
		}
		return nil
	}
	askNext := func() error {
		name := waiting[0]
		waiting = waiting[1:]
		// Connect in this thread: it may be in another network namespace than other threads.
		a, err := approach(name)
		switch {
		case errors.Is(err, syscall.EAGAIN): // its backlog is full
			later = append(later, name)
			return nil
		case errors.Is(err, syscall.ECONNREFUSED):
			delete(open, name)
			delete(looking, name)
			list = true // it has exited, perhaps after a handover to another process
			return nil
		case errors.Is(err, syscall.EPROTOTYPE), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
			delete(open, name) // it is not usher
			return nil
		case err != nil:
			return fmt.Errorf("asking a process that may manage the portals: %w", err)
		}
		if open[name] = a.String(); !a.sameUser() {
			strangers = append(strangers, open[name])
			delete(open, name)
			go a.close()
			return nil
		}
		// All are asked in half of lookTime, so that the last ones have time to answer, too.
		a.within(min(lookTime, lookTime/2*maxContacts/time.Duration(len(open)+silent)))
		asking++
		go func() { answers <- answer{name, a, a.ask(word)} }()
		return nil
	}
	decide := func(a answer) {
		asking--
		delete(looking, a.name)
		switch {
		case errors.Is(a.err, syscall.ENOPROTOOPT): // before Linux 4.19
			err = a.err
		case errors.Is(a.err, io.EOF), errors.Is(a.err, syscall.EPIPE), errors.Is(a.err, syscall.ECONNRESET):
			later = append(later, a.name) // approach then detects if it has exited
		case a.err != nil:
			strangers = append(strangers, open[a.name])
			delete(open, a.name)
			silent++
		case a.contact.state == stateHeld || a.name < own:
			holder = a.contact
		default: // It still searches. When its search ends, it has either given way to this process or taken the lock: ask again.
			looking[a.name] = a.contact.String()
			later = append(later, a.name)
			go a.contact.close()
		}
	}
	always := make(chan struct{})
	close(always)
	err = listNew()
	for late := false; err == nil && holder == nil && (list || len(open) > 0) && !late; {
		var next <-chan struct{}
		if len(waiting) > 0 && asking < maxContacts {
			next = always
		}
		select {
		case <-next:
			err = askNext()
		case a := <-answers:
			decide(a)
		case <-tick.C:
			waiting, later = append(waiting, later...), nil
			if list {
				err = listNew()
			}
		case <-timeout:
			late = true
		}
	}
	for err == nil && holder == nil && len(answers) > 0 { // they arrived before the timeout
		decide(<-answers)
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

// listener is a socket that listens under a holder's name.
type listener struct {
	name string
	user int // that made the socket, or unknownUser
}

const unknownUser = -1

// listeners returns all sockets that listen under a holder's name.
func listeners() (all []listener, err error) {
	f, err := os.Open("/proc/thread-self/net/unix") // first: without /proc, portals cannot work, and the caller reports it
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if all, err := diagnose(); err == nil {
		return all, nil
	}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// Num RefCount Protocol Flags Type St Inode Path (unix_seq_show in
		// net/unix/af_unix.c); 10000 is __SO_ACCEPTCON.
		fields := strings.Fields(lines.Text())
		if len(fields) == 8 && fields[3] == "00010000" && strings.HasPrefix(fields[7], holderPrefix) {
			all = append(all, listener{fields[7], unknownUser})
		}
	}
	return all, lines.Err()
}

// diagnose is listeners by the kernel's socket diagnosis (sock_diag(7), include/uapi/linux/unix_diag.h). It fails if the
// kernel does not have that. Before Linux 5.3, users are unknown.
func diagnose() (all []listener, err error) {
	const listening = 1 << 10 // TCP_LISTEN
	const show = 1<<0 | 1<<6  // UDIAG_SHOW_NAME, UDIAG_SHOW_UID
	const size = 4 + 4 + 2*4  // of struct unix_diag_msg: family, type, state and padding; inode; 2 cookies
	// struct unix_diag_req: family, protocol and padding; then, 32 bits each, states, inode, what to show, 2 cookies.
	query := make([]byte, 24)
	query[0] = unix.AF_UNIX
	binary.NativeEndian.PutUint32(query[4:], listening)
	binary.NativeEndian.PutUint32(query[12:], show)
	request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	request.AddRawData(query)
	sockets, err := request.Execute(unix.NETLINK_SOCK_DIAG, nl.SOCK_DIAG_BY_FAMILY)
	if err != nil {
		return nil, err
	}
	for _, s := range sockets {
		if len(s) < size || s[1] != unix.SOCK_SEQPACKET {
			continue
		}
		attributes, err := nl.ParseRouteAttr(s[size:])
		if err != nil {
			return nil, err
		}
		l := listener{user: unknownUser}
		for _, a := range attributes {
			switch {
			case a.Attr.Type == netlink.UNIX_DIAG_NAME && len(a.Value) > 0 && a.Value[0] == 0: // abstract
				l.name = "@" + string(a.Value[1:])
			case a.Attr.Type == netlink.UNIX_DIAG_UID && len(a.Value) == 4:
				l.user = int(binary.NativeEndian.Uint32(a.Value))
			}
		}
		if strings.HasPrefix(l.name, holderPrefix) {
			all = append(all, l)
		}
	}
	return all, nil
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
