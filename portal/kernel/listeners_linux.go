package kernel

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/usherproxy/usher/portal"
)

// Listener is a socket of this node that receives packets for its address.
type Listener struct {
	Protocol portal.Protocol
	At       netip.AddrPort
	// Process is the socket's owner: "nginx (process 12)", or "a process of user 33" where the process is not visible,
	// as in a container. Mine says that it is this process.
	Process string
	Mine    bool
}

// Takes reports whether l receives packets for t, or keeps other sockets from doing so. An IPv6 listener on all
// addresses usually also has those of IPv4.
func (l *Listener) Takes(t portal.Target) bool {
	at := l.At.Addr()
	anywhere := at.IsUnspecified() && (at.Is6() || t.Addr.Is4()) || t.Addr.IsUnspecified() && at.Is4() == t.Addr.Is4()
	return l.Protocol == t.Protocol && l.At.Port() == t.Port && (anywhere || at == t.Addr)
}

// Listeners returns the listening TCP sockets, and the UDP sockets that are not connected.
func Listeners() ([]Listener, error) {
	all, inodes, err := readSockets()
	nameOwners(all, inodes, "[0-9]*")
	return all, err
}

// readSockets is Listeners without the names of other processes. It also returns the index in all of each socket, by
// its name in /proc/PID/fd.
func readSockets() (all []Listener, inodes map[string]int, err error) {
	inodes = map[string]int{}
	err = EachListener(func(protocol portal.Protocol, at netip.AddrPort, user, inode string) {
		inodes["socket:["+inode+"]"] = len(all)
		all = append(all, Listener{Protocol: protocol, At: at, Process: "a process of user " + user})
	})
	nameOwners(all, inodes, strconv.Itoa(os.Getpid()))
	return all, inodes, err
}

// States of sockets in /proc/net, of enum in net/tcp_states.h: those of a TCP listener, and of a UDP socket that is not
// connected.
const stateListen, stateClose = "0A", "07"

// EachListener calls note for each listening TCP socket, and each UDP socket that is not connected.
func EachListener(note func(protocol portal.Protocol, at netip.AddrPort, user, inode string)) error {
	var errs []error
	for _, kind := range [...]struct { // always in this order, so that Holder names the same socket each time
		name     string
		protocol portal.Protocol
		state    string
	}{{"tcp", portal.TCP, stateListen}, {"tcp6", portal.TCP, stateListen}, {"udp", portal.UDP, stateClose}, {"udp6", portal.UDP, stateClose}} {
		f, err := os.Open("/proc/thread-self/net/" + kind.name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = readListeners(f, kind.state, func(at netip.AddrPort, user, inode string) {
				note(kind.protocol, at, user, inode)
			})
			f.Close()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// readListeners calls note for each socket in a state.
func readListeners(r io.Reader, state string, note func(at netip.AddrPort, user, inode string)) error {
	lines := bufio.NewScanner(r)
	lines.Scan() // headings
	for lines.Scan() {
		// Number, local and remote address:port, state, queues, timer, retransmits, user, timeout, inode (proc(5)).
		words := strings.Fields(lines.Text())
		if len(words) < 10 {
			continue
		}
		if words[3] != state {
			if state == stateListen {
				break // listeners come first; there may be many connections
			}
			continue
		}
		if at, err := ParseProcNet(words[1]); err == nil {
			note(at, words[7], words[9])
		}
	}
	return lines.Err()
}

// nameOwners sets the owners of sockets, as far as this process may see them. It considers the processes whose IDs
// match the pattern pids.
func nameOwners(all []Listener, inodes map[string]int, pids string) {
	paths, _ := filepath.Glob("/proc/" + pids + "/fd/*") // the pattern is valid
	for _, path := range paths {
		link, err := os.Readlink(path)
		i, is := inodes[link]
		if err != nil || !is {
			continue
		}
		pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		all[i].Process = fmt.Sprintf("%s (process %d)", printable(strings.TrimSpace(string(name))), pid)
		all[i].Mine = all[i].Mine || pid == os.Getpid()
	}
}

// printable replaces each character of a process name that could control a terminal. Every user can set such a name.
func printable(name string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, name)
}

// holders caches the last result for Holder, which many callers may call in a row.
var holders struct {
	sync.Mutex
	at     time.Time
	all    []Listener
	byPort map[uint16][]*Listener
	inodes map[string]int // nil once the processes have names
}

// Holder returns the process that already listens on t's address and port, such as "nginx (process 12) listens on
// 0.0.0.0:443". It skips listeners for which ignore returns true. Without a listener it returns "".
func Holder(t portal.Target, ignore func(*Listener) bool) string {
	holders.Lock()
	defer holders.Unlock()
	if time.Since(holders.at) > time.Second {
		holders.all, holders.inodes, _ = readSockets() // on error no process is seen
		holders.byPort = map[uint16][]*Listener{}
		for i := range holders.all {
			l := &holders.all[i]
			holders.byPort[l.At.Port()] = append(holders.byPort[l.At.Port()], l)
		}
		holders.at = time.Now()
	}
	for _, l := range holders.byPort[t.Port] {
		if !l.Takes(t) || ignore != nil && ignore(l) {
			continue
		}
		// Naming reads each descriptor of the node: only for a listener that is reported.
		if holders.inodes != nil {
			nameOwners(holders.all, holders.inodes, "[0-9]*")
			holders.inodes = nil
		}
		return fmt.Sprintf("%s listens on %s", l.Process, l.At)
	}
	return ""
}
