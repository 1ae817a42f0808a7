package fdstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/usherproxy/usher/portal/fdpass"
)

// sendTime is how long the manager may take to read a message. A manager that restarts, or has no CPU for some seconds,
// must not exceed it. After it, usher can no longer report closed sockets: the manager keeps them open, and clients in
// their queues wait.
const sendTime = time.Minute

// Manager is the service manager that started this process. Its methods accept nil: there is no manager.
type Manager struct {
	// Kept are the files that an earlier process left with the manager, by name. A caller that uses some removes them
	// from Kept and closes them.
	Kept map[string][]*os.File
	// Restarts is how often the keeper has restarted usher after a crash. Why says how the last process crashed, and
	// Crashed when. Other managers do not set these.
	Restarts int
	Why      string
	Crashed  time.Time

	conn     *net.UnixConn
	watchdog time.Duration
	log      logrus.FieldLogger

	mu    sync.Mutex
	queue []message
	wake  chan struct{}
	lost  bool // the manager does not read
}

// message is a message to send. file, if not nil, returns a copy when the message is next; if it returns nil, nothing
// is sent.
type message struct {
	state string
	file  func() *os.File
	// barrier, if not nil, is closed when the manager has processed all earlier messages.
	barrier *os.File
}

// FromEnvironment returns the manager that the environment names, or nil. It removes these variables from the
// environment: they are not for processes that this one starts.
func FromEnvironment(log logrus.FieldLogger) (*Manager, error) {
	conn, err := Connect()
	if conn == nil && err == nil {
		return nil, nil
	}
	m := &Manager{Kept: map[string][]*os.File{}, conn: conn, watchdog: Watchdog(), log: log, wake: make(chan struct{}, 1)}
	Passed(func(name string, fd int) {
		if file := os.NewFile(uintptr(fd), name); file != nil {
			m.Kept[name] = append(m.Kept[name], file)
		}
	})
	var at int64
	if _, err := fmt.Sscanf(os.Getenv(KeeperVariable), "restarts=%d at=%d", &m.Restarts, &at); err == nil {
		m.Crashed = time.Unix(at, 0)
		_, m.Why, _ = strings.Cut(os.Getenv(KeeperVariable), " last=")
	}
	for _, name := range Variables {
		os.Unsetenv(name)
	}
	if err != nil {
		m.Forget()
		return nil, fmt.Errorf("cannot notify the service manager: %w", err)
	}
	go m.run()
	return m, nil
}

// Notify sends the manager an assignment such as "READY=1".
func (m *Manager) Notify(state string) { m.enqueue(message{state: state}) }

// Put sends the manager a copy of a file, under a name of at most 255 characters without ':'. Another goroutine calls
// file when the message is next, at most once, and closes its result. If it returns nil, nothing is stored. Put reports
// whether the message is queued.
func (m *Manager) Put(name string, file func() *os.File) bool {
	// FDPOLL: otherwise the manager would drop a file on hangup, even a listener that is still usable.
	return m.enqueue(message{state: "FDSTORE=1\nFDNAME=" + name + "\nFDPOLL=0", file: file})
}

// Remove makes the manager close its files of a name.
func (m *Manager) Remove(name string) { m.Notify("FDSTOREREMOVE=1\nFDNAME=" + name) }

// Take returns the files that an earlier process left under a name, or nil. The manager still has them. The caller
// closes them.
func (m *Manager) Take(name string) []*os.File {
	if m == nil {
		return nil
	}
	files := m.Kept[name]
	delete(m.Kept, name)
	return files
}

// Forget closes the files of an earlier process that no caller has taken, and makes the manager close them too.
func (m *Manager) Forget() {
	if m == nil {
		return
	}
	for name, files := range m.Kept {
		for _, f := range files {
			f.Close()
		}
		m.Remove(name)
	}
	clear(m.Kept)
}

// Wait waits, at most for most, until the manager has processed all earlier messages.
func (m *Manager) Wait(most time.Duration) {
	if m == nil {
		return
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return
	}
	defer ours.Close()
	if !m.enqueue(message{state: "BARRIER=1", barrier: theirs}) {
		theirs.Close()
		return
	}
	_ = ours.SetReadDeadline(time.Now().Add(most))
	_, _ = io.ReadFull(ours, make([]byte, 1)) // until the manager has closed it
}

// Watch sends the manager a sign of life at once, and then twice per interval within which the manager expects one. It
// skips those for which healthy returns false. It returns when ctx ends.
func (m *Manager) Watch(ctx context.Context, healthy func() bool) {
	if m == nil || m.watchdog <= 0 {
		return
	}
	ticker := time.NewTicker(m.watchdog / 2)
	defer ticker.Stop()
	for {
		if healthy() {
			m.sendAlive()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// sendAlive sends a sign of life before the queued messages: these may each wait for seconds in fdpass.Send. It queues
// the sign only if the manager's socket is full.
func (m *Manager) sendAlive() {
	const alive = "WATCHDOG=1"
	m.mu.Lock()
	lost := m.lost
	m.mu.Unlock()
	if !lost && fdpass.SendNow(m.conn, []byte(alive)) != nil {
		m.Notify(alive)
	}
}

// enqueue queues a message, and reports whether there is a manager to send it to.
func (m *Manager) enqueue(what message) bool {
	if m == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lost {
		return false
	}
	m.queue = append(m.queue, what)
	select {
	case m.wake <- struct{}{}:
	default:
	}
	return true
}

// run sends the queued messages as long as the manager reads.
func (m *Manager) run() {
	refused := rate.Sometimes{First: 1, Interval: 10 * time.Second}
	for range m.wake {
		m.mu.Lock()
		batch := m.queue
		m.queue = nil
		m.mu.Unlock()
		for i, what := range batch {
			err := m.send(what)
			if err == nil {
				continue
			}
			if what.file != nil && (errors.Is(err, unix.ETOOMANYREFS) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM)) {
				refused.Do(func() {
					m.log.WithError(err).Warn("Cannot store a socket or file; it will be lost if usher crashes (logged at most every 10 s)")
				})
				continue // other processes of this user may have too many descriptors in flight
			}
			m.mu.Lock()
			for _, left := range append(batch[i:], m.queue...) {
				left.barrier.Close()
			}
			m.lost, m.queue = true, nil
			m.mu.Unlock()
			m.log.WithError(err).Warn("The keeper or service manager no longer reads messages; sockets will be lost if usher crashes")
			return
		}
	}
}

func (m *Manager) send(what message) error {
	file := what.barrier
	if what.file != nil {
		if file = what.file(); file == nil {
			return nil
		}
	}
	var fds []int
	if file != nil {
		defer file.Close()
		if fd, err := fdpass.Descriptor(file); err == nil {
			fds = append(fds, fd)
		}
	}
	_ = m.conn.SetWriteDeadline(time.Now().Add(sendTime)) // fails only once it is closed
	return fdpass.Send(m.conn, []byte(what.state), fds...)
}
