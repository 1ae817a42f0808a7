package keeper

import (
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/portal/handover"
)

const (
	// shortLife is the serving time below which a crash counts as a failure. From the
	// second successive failure on, the keeper pauses before a restart: for firstPause, then
	// twice as long each time, up to longestPause.
	shortLife    = time.Second
	firstPause   = 100 * time.Millisecond
	longestPause = 30 * time.Second
	// answeredPause is the shortest pause in which the keeper itself answers health checks and other usher
	// instances.
	answeredPause = time.Second
)

// forwarded are the signals that the keeper forwards to usher.
var forwarded = []os.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2}

// keeper is the state of the keeper process.
type keeper struct {
	Options
	manager       *manager        // nil for none
	pause         *pause          // nil while an usher process runs
	stopRequested bool            // by a signal, or because usher has stopped
	removing      bool            // call RemoveLeft before the exit
	code          int             // exit code, once stopRequested is set and usher has exited
	again         bool            // upgrade once more
	taken         chan struct{}   // another usher instance has taken over while none ran here
	unclaimed     <-chan struct{} // closed when that instance has ended; nil unless this keeper waits for that
	sent          chan func()     // the loop calls these: they read packets about connections
	// connections is the number of saved connections and pipes. Each has two descriptors.
	connections int
	// count is the number of kept descriptors, and length the total length of their names.
	count, length int
	overfull      bool // it has been logged that not all sockets can be kept

	path    string   // where an upgrade finds usher's program
	program *os.File // of the last usher process that took over; path may have a newer one
	score   string   // usher's oom_score_adj; "" if the keeper's was not changed

	socket  int              // descriptor of the socket for usher's messages
	address string           // of socket
	kept    map[string][]int // descriptors by name, oldest first for each name
	// current is the serving or starting usher process, or nil. next is the process that is taking over from current.
	// Once it has, next becomes current, and the former current moves to draining until its connections have ended.
	current, next *child
	draining      []*child
	orphans       []*area // saved connections of a process that crashed, until the next one starts

	served             bool      // an usher process has been ready
	failures, restarts int       // successive early failures, and all restarts
	last               string    // reason for the last restart
	crashed            time.Time // time of the last crash
}

// Run starts usher and restarts it when it exits unexpectedly. It returns the exit code of
// the last usher process, or 0 if none ran when the keeper stopped. The code is 1 if
// RemoveLeft failed.
func Run(o Options) (code int, err error) {
	k := &keeper{Options: o, taken: make(chan struct{}, 1), sent: make(chan func()), kept: map[string][]int{}}
	if k.program, err = os.OpenFile("/proc/self/exe", unix.O_PATH, 0); err != nil {
		return 0, err
	}
	if k.path, err = k.find(o.Arguments[0]); err != nil {
		return 0, err
	}
	if err := k.listen(); err != nil {
		return 0, fmt.Errorf("create the keeper's socket: %w", err)
	}
	k.adopt()
	k.protect()
	k.manager = newManager(k.Log)
	if code = k.run(); code != 0 || !k.removing {
		return code, nil
	}
	if err := o.RemoveLeft(k.Log); err != nil {
		k.Log.WithError(err).Error("Failed to remove usher's rules")
		return 1, nil
	}
	return 0, nil
}

// run is the loop.
func (k *keeper) run() (code int) {
	signals, hangups, children := make(chan os.Signal, 8), make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(signals, forwarded...)
	signal.Notify(hangups, unix.SIGHUP)
	signal.Notify(children, unix.SIGCHLD)
	messages := make(chan func())
	watch(k.socket, messages, func() bool { k.receive(); return true })
	defer func() { k.abandon(k.orphans) }()
	beat := k.manager.beat()
	k.start()
	debug.FreeOSMemory()
	for {
		select {
		case receive := <-messages:
			receive()
		case hear := <-k.sent:
			hear()
		case <-children:
			if code, over := k.reap(); over {
				return code
			}
		case sig := <-signals:
			if k.forward(sig) {
				return 0
			}
		case <-hangups:
			k.upgrade()
		case <-k.pause.over():
			k.start()
		case <-beat:
			k.beat()
		case <-k.taken:
			if code, over := k.leave(); over {
				return code
			}
		case <-k.unclaimed:
			k.Log.Warn("The usher instance that took over has ended; keeper exiting, so that the kubelet restarts this container")
			k.unclaimed = nil
			if code, over := k.end(0); over {
				return code
			}
		}
		if k.again && k.next == nil {
			k.again = false
			k.upgrade()
		}
	}
}

// watch sends a function on calls whenever the socket is readable, and waits until the receiver has called it. The
// function calls hear, which reads from the socket. When hear returns false, watch ends and closes over.
func watch(fd int, calls chan<- func(), hear func() (open bool)) (over <-chan struct{}) {
	heard, ended := make(chan bool), make(chan struct{})
	go func() {
		defer close(ended)
		for open := true; open; {
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if n, err := unix.Poll(fds, -1); err == nil && n > 0 {
				calls <- func() { heard <- hear() }
				open = <-heard
			}
		}
	}()
	return ended
}

// forward sends a signal to usher, and reports whether there is no process to wait for. Processes
// that have handed over are exiting already. They get only the second signal, which resets
// their connections.
func (k *keeper) forward(sig os.Signal) (over bool) {
	s := sig.(syscall.Signal)
	if k.stopRequested {
		for _, c := range k.draining {
			_ = unix.Kill(c.pid, s) // it is not reaped, so no other process has this PID
		}
	}
	if s == unix.SIGTERM || s == unix.SIGINT {
		k.stopRequested = true
		left := (k.current == nil || !k.current.ready) && len(k.kept[fdstore.LockName]) > 0 // perhaps the rules of a crashed process
		k.removing = k.removing || k.RemoveRules || s == unix.SIGINT && left
		k.pause.end()
		k.drop() // otherwise clients would wait once usher has exited
	}
	for _, c := range []*child{k.current, k.next} {
		if c != nil {
			_ = unix.Kill(c.pid, s) // as above
		}
	}
	if k.stopRequested && k.current == nil && len(k.draining) == 0 {
		rules := ""
		if !k.removing && k.unclaimed == nil {
			rules = " and its rules are kept for the next start ('usher cleanup' removes them)"
		}
		k.Log.WithField("signal", sig.String()).Info("Keeper exiting; no usher is running" + rules)
		return true
	}
	return false
}

// leave leaves the portals to another usher instance that has taken over, and reports whether
// the keeper may exit. In a Pod it stays while that instance runs: the kubelet would restart the
// container, whose usher would take over again.
func (k *keeper) leave() (code int, over bool) {
	k.Log.Info("Another usher instance has taken over from the keeper")
	k.pause.end()
	k.pause = nil
	k.letGo()
	if !fdstore.InPod() {
		return k.end(0)
	}
	k.unclaimed = handover.Unclaimed()
	return 0, false
}

// letGo closes the kept sockets and resets the orphaned connections: another instance serves.
func (k *keeper) letGo() {
	k.drop()
	k.abandon(k.orphans)
	k.orphans = nil
}

// reap handles children that have exited: the keeper's own, and those that it has inherited
// as process 1.
func (k *keeper) reap() (code int, over bool) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil || pid <= 0:
			return 0, false
		}
		k.receive() // its last messages
		for _, c := range k.children() {
			if c.pid == pid {
				k.hangUp(c)
			}
		}
		switch former := slices.IndexFunc(k.draining, func(c *child) bool { return c.pid == pid }); {
		case former >= 0:
			k.inherit(k.draining[former], k.current)
			k.draining = slices.Delete(k.draining, former, former+1)
			code, over = k.code, k.stopRequested && k.current == nil && k.next == nil && len(k.draining) == 0
		case k.next != nil && pid == k.next.pid:
			code, over = k.nextEnded(status)
		case k.current == nil || pid != k.current.pid:
		case k.next != nil:
			k.currentEnded(status)
		default:
			code, over = k.ended(status)
		}
		if over {
			return code, true
		}
	}
}

// ended handles the exit of the current usher process when no next one is starting.
func (k *keeper) ended(status unix.WaitStatus) (code int, over bool) {
	c, why := k.current, describe(status)
	k.current = nil
	k.orphans = append(k.orphans, c.areas...)
	code = status.ExitStatus()
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	log := k.Log.WithField("reason", why)
	switch {
	case c.stopping && !k.stopRequested && code != 0 && fdstore.InPod(): // it had handed over, or received a signal directly; see leave
		log.Warn("usher exited after it had stopped serving; waiting for the instance that took over to end")
		k.letGo()
		k.unclaimed = handover.Unclaimed()
		return 0, false
	case k.stopRequested, c.stopping, code == 0:
		return k.end(code)
	case code == ExitLocked:
		log.Error("Another usher instance manages the portals; keeper exiting")
		k.letGo()
		return k.end(code)
	case !k.served: // a restart would fail in the same way
		log.Error("usher exited before serving; keeper exiting")
		return code, true
	}
	if k.failures++; c.ready && time.Since(c.since) >= shortLife {
		k.failures = 0
	}
	if k.failures > 1 { // a saved connection may cause the crashes
		k.abandon(k.orphans)
		k.orphans = nil
	}
	k.restarts++
	k.last, k.crashed = why, time.Now()
	wait := k.restartDelay()
	log.WithFields(logrus.Fields{"restarts": k.restarts, "pause": wait.String()}).Error("usher exited unexpectedly; restarting it")
	k.begin(wait)
	return 0, false
}

// end makes the keeper exit with code when all processes that have handed over have exited: if the
// keeper is process 1, its exit would reset their connections.
func (k *keeper) end(code int) (_ int, over bool) {
	if k.stopRequested, k.code = true, code; len(k.draining) == 0 {
		return code, true
	}
	k.Log.WithField("instances", len(k.draining)).Info("Keeper waiting for previous usher instances to finish their connections")
	return 0, false
}

// restartDelay returns the pause before usher is restarted.
func (k *keeper) restartDelay() time.Duration {
	if k.failures < 2 {
		return 0
	}
	return min(firstPause<<min(k.failures-2, 16), longestPause)
}

// describe returns the reason why a process ended.
func describe(status unix.WaitStatus) string {
	if status.Signaled() {
		return "signal: " + status.Signal().String()
	}
	return fmt.Sprintf("exit code %d", status.ExitStatus())
}
