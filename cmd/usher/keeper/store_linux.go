package keeper

import (
	"crypto/rand"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal/fdpass"
	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy/admin"
)

const (
	// maxFDs is the maximum number of descriptors in a message (SCM_MAX_FD, unix(7)),
	// and maxMessage the maximum length of a message.
	maxFDs     = 253
	maxMessage = 4 << 10
	// maxNames is the maximum length of all names together: they are one environment variable
	// of usher, which the kernel limits to 128 KiB (MAX_ARG_STRLEN, execve(2)).
	maxNames = 127 << 10
	// maxHeld bounds the messages that wait until it is decided which of two usher processes continues.
	maxHeld = 4096
	// strangerTime is the maximum time that receive spends on discarding messages of other processes.
	strangerTime = 100 * time.Millisecond
	// spareFDs is the number of descriptors reserved for the keeper's other uses.
	spareFDs = 64 + admin.MaxClients
)

// message is a message from an usher process.
type message struct {
	text string
	fds  []int
}

// value returns the value of a variable in a message.
func (m *message) value(name string) string {
	for line := range strings.Lines(m.text) {
		if value, is := strings.CutPrefix(strings.TrimSuffix(line, "\n"), name+"="); is {
			return value
		}
	}
	return ""
}

func (m *message) says(name string) bool { return m.value(name) == "1" }

func (m *message) close() { fdpass.Close(m.fds) }

// listen creates the socket. Any process in the network namespace can write to it. The kernel adds the credentials of
// the sender to each message, so that receive can discard messages of other processes.
func (k *keeper) listen() (err error) {
	if k.socket, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(k.socket, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		return err
	}
	k.address = "@usher-keeper/" + strings.ToLower(rand.Text())
	return unix.Bind(k.socket, &unix.SockaddrUnix{Name: k.address})
}

// receive handles all pending messages.
func (k *keeper) receive() {
	text, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(maxFDs*4)+unix.CmsgSpace(unix.SizeofUcred))
	for began := time.Now(); ; {
		n, oobn, flags, _, err := unix.Recvmsg(k.socket, text, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return
		}
		m := &message{text: string(text[:n])}
		var from int32
		messages, _ := unix.ParseSocketControlMessage(oob[:oobn]) // the kernel's messages are well-formed
		for i := range messages {
			if who, err := unix.ParseUnixCredentials(&messages[i]); err == nil {
				from = who.Pid
			}
			if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
				m.fds = append(m.fds, fds...)
			}
		}
		switch {
		case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
			handover.Discard(m.fds)
		case k.current != nil && int(from) == k.current.pid:
			k.hear(k.current, m)
		case k.next != nil && int(from) == k.next.pid:
			k.hear(k.next, m)
		default: // another process, or one that has handed over
			handover.Discard(m.fds)
			if time.Since(began) > strangerTime {
				return
			}
		}
	}
}

// hear handles a message from an usher process. While another one is taking over from it,
// messages of both wait until it is decided which of them continues. WATCHDOG messages do
// not wait, or a service manager would conclude that neither is healthy.
func (k *keeper) hear(c *child, m *message) {
	if k.next == nil || m.says("WATCHDOG") {
		k.obey(c, m)
		return
	}
	if m.says("FDSTOREREMOVE") { // its earlier messages about this name no longer matter
		name := m.value("FDNAME")
		c.held = slices.DeleteFunc(c.held, func(h *message) bool {
			over := h.value("FDNAME") == name
			if over {
				h.close()
			}
			return over
		})
	}
	if len(c.held) < maxHeld || m.says("READY") || m.says("STOPPING") {
		c.held = append(c.held, m)
	} else {
		m.close()
	}
	if c == k.next && m.says("READY") {
		k.dismiss()
		k.promote()
	}
}

// obey executes a message of an usher process, and forwards it to the service manager.
func (k *keeper) obey(c *child, m *message) {
	name := m.value("FDNAME")
	if m.says("FDSTOREREMOVE") {
		k.remove(name)
	}
	if m.says("READY") {
		c.ready, c.since, k.served = true, time.Now(), true
	}
	if m.says("STOPPING") {
		c.stopping = true
	}
	if !m.says("BARRIER") {
		k.manager.send(m)
	}
	if !m.says("FDSTORE") || c.stopping || !k.put(name, m.fds) {
		m.close()
	}
}

// put keeps descriptors, if there is capacity for them, and for their names in the environment of
// the next usher process.
func (k *keeper) put(name string, fds []int) bool {
	length := len(fds) * (len(name) + 1)
	if k.full(len(fds), length) {
		if !k.overfull {
			k.overfull = true
			k.Log.WithField("kept", k.count).Error("Cannot keep more sockets; after a crash, usher opens the others again")
		}
		return false
	}
	k.count, k.length = k.count+len(fds), k.length+length
	k.kept[name] = append(k.kept[name], fds...)
	return true
}

// full reports whether the keeper cannot take this number of further descriptors, or names of this length.
func (k *keeper) full(fds, names int) bool {
	var limit unix.Rlimit
	return k.length+names > maxNames ||
		unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil && uint64(k.count+2*k.connections+fds+spareFDs) > limit.Cur
}

// remove closes the descriptors that are kept under a name.
func (k *keeper) remove(name string) {
	fds := k.kept[name]
	k.count, k.length = k.count-len(fds), k.length-len(fds)*(len(name)+1)
	fdpass.Close(fds)
	delete(k.kept, name)
}

// drop closes all kept descriptors.
func (k *keeper) drop() {
	for name := range k.kept {
		k.remove(name)
	}
}

// adopt keeps the descriptors that a service manager has kept from an earlier keeper.
func (k *keeper) adopt() {
	if os.Getenv("LISTEN_PID") == "" { // a keeper does not set it, and no keeper has started this process
		return
	}
	fdstore.Passed(func(name string, fd int) {
		if !k.put(name, []int{fd}) {
			unix.Close(fd)
		}
	})
}

// all returns the kept names and descriptors, except those of the given names.
func (k *keeper) all(except ...string) (names []string, fds []int) {
	for name, kept := range k.kept {
		if slices.Contains(except, name) {
			continue
		}
		for _, fd := range kept {
			names, fds = append(names, name), append(fds, fd)
		}
	}
	return names, fds
}

// manager is the service manager that has started the keeper.
type manager struct {
	conn     *net.UnixConn
	watchdog time.Duration
	log      logrus.FieldLogger
}

// newManager returns the manager that the environment names, or nil.
func newManager(log logrus.FieldLogger) *manager {
	conn, err := fdstore.Connect()
	if err != nil {
		log.WithError(err).Warn("Cannot connect to the service manager")
	}
	if conn == nil {
		return nil
	}
	return &manager{conn: conn, watchdog: fdstore.Watchdog(), log: log}
}

// managerTime is the time limit for a message to the manager.
const managerTime = time.Second

func (m *manager) send(what *message) {
	if m == nil {
		return
	}
	_ = m.conn.SetWriteDeadline(time.Now().Add(managerTime)) // fails only once it is closed
	if err := fdpass.Send(m.conn, []byte(what.text), what.fds...); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
		m.log.WithError(err).Warn("Failed to notify the service manager")
	}
}

// beat returns a channel that receives twice per watchdog interval, or nil without a watchdog.
func (m *manager) beat() <-chan time.Time {
	if m == nil || m.watchdog <= 0 {
		return nil
	}
	return time.Tick(m.watchdog / 2)
}

// beat sends WATCHDOG=1 while no usher process serves. Otherwise usher sends it.
func (k *keeper) beat() {
	if k.current == nil || !k.current.ready {
		k.manager.send(&message{text: "WATCHDOG=1"})
	}
}
