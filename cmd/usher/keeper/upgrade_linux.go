package keeper

import (
	"os"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal/fdstore"
)

// SIGHUP upgrades usher without an interruption: the keeper starts the program that is now at its path, and this usher
// process takes over from the running one (--take-over). If it does not begin to serve, the running one continues. The
// keeper itself stays the program that it is.

// upgrade starts the program at the keeper's path, unless no usher process may start now.
func (k *keeper) upgrade() {
	switch {
	case k.unclaimed != nil || len(k.taken) > 0:
		k.Log.Info("Ignoring SIGHUP: another usher instance has taken over")
		return
	case k.stopRequested || k.current != nil && k.current.stopping:
		return
	case k.next != nil:
		k.Log.Info("Upgrading again once the new usher instance serves")
		k.again = true
		return
	}
	program, err := os.OpenFile(k.path, unix.O_PATH, 0)
	if err == nil && k.current == nil {
		k.use(program)
		k.start()
		return
	}
	if err == nil {
		names, fds := k.all(fdstore.LockName) // the running process holds it
		arguments := k.Arguments
		if !slices.Contains(arguments, "--take-over") {
			arguments = append(slices.Clone(arguments), "--take-over")
		}
		k.next, err = k.spawn(program, arguments, names, fds)
	}
	if err != nil {
		program.Close()
		k.Log.WithError(err).Error("Failed to start the new program; keeping the current one")
		return
	}
	k.next.program = program
	k.Log.WithFields(logrus.Fields{"program": k.path, "pid": k.next.pid}).Info("Started the new program; the new usher instance is taking over")
}

// nextEnded handles the exit of the next usher process.
func (k *keeper) nextEnded(status unix.WaitStatus) (code int, over bool) {
	if k.stopRequested || !k.current.stops() {
		k.inherit(k.next, k.current)
		k.upgradeFailed(describe(status))
		return 0, false
	}
	k.dismiss() // the exited process had taken over, so the current one no longer serves
	k.promote()
	return k.ended(status)
}

// currentEnded handles the exit of the current usher process while the next one is starting.
func (k *keeper) currentEnded(status unix.WaitStatus) {
	if !k.stopRequested && !k.current.stops() {
		// With this copy, the lock would stay held, and the next process would wait for the holder's answer.
		k.remove(fdstore.LockName)
		k.manager.send(&message{text: "FDSTOREREMOVE=1\nFDNAME=" + fdstore.LockName})
		k.restarts++
		k.last, k.crashed = describe(status), time.Now()
		k.Log.WithField("reason", k.last).Error("usher exited unexpectedly while the new instance was starting; the new one uses the sockets that the keeper holds")
	}
	k.inherit(k.current, k.next)
	k.promote()
}

// dismiss signals the current usher process to exit, and counts it among those that drain. Outside a Pod, a process
// that has handed over exits by itself. In a Pod, or without a lock to hand over, it exits only on a signal.
func (k *keeper) dismiss() {
	k.draining = append(k.draining, k.current)
	if !k.stopRequested { // otherwise this would be a second signal, which resets its connections
		_ = unix.Kill(k.current.pid, unix.SIGTERM) // it may have exited, but is not reaped
	}
}

// promote makes the next usher process the current one, after it has taken over or the current one has ended.
func (k *keeper) promote() {
	former, next := k.current, k.next
	for _, m := range former.held {
		m.close()
	}
	k.current, k.next = next, nil
	k.use(next.program)
	k.executeDeferred(next)
}

// upgradeFailed handles the exit of the next usher process before it has taken over.
func (k *keeper) upgradeFailed(why string) {
	if !k.stopRequested {
		k.Log.WithField("reason", why).Error("The new usher instance failed to take over; the current one keeps running")
	}
	for _, m := range k.next.held {
		m.close()
	}
	k.next.program.Close()
	k.next = nil
	k.executeDeferred(k.current)
}

// executeDeferred executes the messages that an usher process sent while it was undecided whether it continues.
func (k *keeper) executeDeferred(c *child) {
	held := c.held
	c.held = nil
	for _, m := range held {
		k.obey(c, m)
	}
}
