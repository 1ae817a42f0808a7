package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal/fdpass"
	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/portal/handover"
)

// SIGHUP replaces the program without an interruption: the keeper executes the program that
// is now at its path, as the same process (execve(2)), with all descriptors and children.
// The new program starts an usher process that takes over from the running one
// (--take-over). If the new process does not begin to serve, the old one continues.

// stateVariable holds the descriptor of a file with the keeper's state.
const stateVariable = "USHER_KEEPER_STATE"

// tryTime is the time limit for the trial run of a program, and hearEvery the interval at
// which the keeper reads usher's messages meanwhile.
const (
	tryTime   = 10 * time.Second
	hearEvery = 10 * time.Millisecond
)

// upgrade replaces the keeper's program. It returns only if it cannot or must not do so, or does so later.
func (k *keeper) upgrade() {
	if k.unclaimed != nil || len(k.taken) > 0 {
		k.log.Info("Ignoring SIGHUP: another usher instance has taken over")
		return
	}
	if k.stopRequested || k.Current != nil && k.Current.Stopping {
		return
	}
	if k.Next != nil {
		k.log.Info("Replacing the program again once the new usher instance serves")
		k.again = true
		return
	}
	err := k.try()
	if len(k.taken) > 0 || k.Current != nil && k.Current.Stopping {
		return // another usher instance has taken over meanwhile
	}
	if len(k.signals) > 0 { // received meanwhile; they would be lost with this program
		k.again = true
		return
	}
	if err == nil {
		err = k.become(k.Program)
	}
	k.log.WithField("program", k.Program).WithError(err).Error("Cannot run the program; keeping the current keeper and usher")
}

// try runs the program with the keeper's arguments and --help, to check that it accepts them: a version without
// --keeper, for instance, would exit, and no process would keep the descriptors. The loop reaps no children meanwhile,
// so that package exec can wait for the program. try keeps receiving usher's messages; otherwise usher would conclude
// that the keeper has died.
func (k *keeper) try() error {
	ctx, cancel := context.WithTimeout(context.Background(), tryTime)
	defer cancel()
	tried := make(chan error, 1)
	go func() {
		cmd := exec.CommandContext(ctx, k.Program, append(slices.Clone(k.Arguments[1:]), "--help")...)
		cmd.WaitDelay = time.Second // its children may hold its output open
		out, err := cmd.CombinedOutput()
		if err == nil && !bytes.Contains(out, []byte("--keeper")) {
			err = errors.New("it does not support --keeper")
		}
		if err != nil {
			err = fmt.Errorf("%s --help: %w: %.200s", k.Program, err, out)
		}
		tried <- err
	}()
	tick := time.NewTicker(hearEvery)
	defer tick.Stop()
	for {
		select {
		case err := <-tried:
			return err
		case <-tick.C:
			k.receive()
		}
	}
}

// become executes program in place of this one. It returns only on failure.
func (k *keeper) become(program string) error {
	file, err := handover.Memory("usher keeper")
	if err != nil {
		return err
	}
	defer file.Close()
	if err := json.NewEncoder(file).Encode(k.state); err != nil {
		return err
	}
	at := int(file.Fd())
	fds := append(k.descriptors(), at)
	keepAcrossExec(true, fds)
	defer keepAcrossExec(false, fds)

	// A signal that arrives now stays pending. If it is SIGTERM or SIGINT, it ends the new program: Go's runtime unblocks
	// these before it installs handlers (blockableSig).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before unix.Sigset_t
	blocked := sigset(append(slices.Clone(forwarded), unix.SIGHUP)...)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &blocked, &before); err != nil {
		return os.NewSyscallError("pthread_sigmask", err)
	}
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) }()
	return syscall.Exec(program, k.Arguments, append(os.Environ(), stateVariable+"="+strconv.Itoa(at)))
}

func sigset(signals ...os.Signal) (set unix.Sigset_t) {
	for _, s := range signals {
		bit := int(s.(syscall.Signal)) - 1
		set.Val[bit/strconv.IntSize] |= 1 << (bit % strconv.IntSize) // int has the size of the kernel's long
	}
	return set
}

// Resume continues as the keeper if this program has replaced the keeper's earlier one (execve(2)). Otherwise it
// returns false. logger returns a log with the settings of the keeper's log; removeLeft is as in Options.
func Resume(logger func(level, format string) logrus.FieldLogger, removeLeft func(logrus.FieldLogger) error) (code int, is bool) {
	at, err := strconv.Atoi(os.Getenv(stateVariable))
	if err != nil {
		return 0, false
	}
	os.Unsetenv(stateVariable)
	file := os.NewFile(uintptr(at), stateVariable)
	k := &keeper{removeLeft: removeLeft}
	err = json.NewDecoder(io.NewSectionReader(file, 0, math.MaxInt64)).Decode(&k.state)
	file.Close()
	if err != nil {
		return 0, false
	}
	k.log = logger(k.LogLevel, k.LogFormat)
	kept := k.Kept
	k.Kept = map[string][]int{}
	for name, fds := range kept {
		if !k.put(name, fds) {
			fdpass.Close(fds)
		}
	}
	keepAcrossExec(false, k.descriptors())
	k.manager = newManager(k.log)
	return k.finish(k.run(k.replace)), true
}

// replace starts an usher process that takes over from the running one.
func (k *keeper) replace() {
	if k.Current == nil {
		k.start()
		return
	}
	names, fds := k.all(fdstore.LockName) // the running process holds it
	arguments := k.Arguments
	if !slices.Contains(arguments, "--take-over") {
		arguments = append(slices.Clone(arguments), "--take-over")
	}
	c, err := k.spawn(arguments, names, fds)
	if err != nil {
		k.log.WithError(err).Error("Failed to start the new usher instance; the current one keeps running")
		return
	}
	k.log.WithFields(logrus.Fields{"program": k.Program, "pid": c.PID}).Info("Keeper replaced its program; the new usher instance is taking over")
	k.Next = c
}

// nextEnded handles the exit of the next usher process.
func (k *keeper) nextEnded(status unix.WaitStatus) (code int, over bool) {
	if k.stopRequested || !k.Current.stops() {
		k.inherit(k.Next, k.Current)
		k.upgradeFailed(describe(status))
		return 0, false
	}
	k.dismiss() // the exited process had taken over, so the current one no longer serves
	k.promote()
	return k.ended(status)
}

// currentEnded handles the exit of the current usher process while the next one is starting.
func (k *keeper) currentEnded(status unix.WaitStatus) {
	if !k.stopRequested && !k.Current.stops() {
		// With this copy, the lock would stay held, and the next process would wait for the holder's answer.
		k.remove(fdstore.LockName)
		k.manager.send(&message{Text: "FDSTOREREMOVE=1\nFDNAME=" + fdstore.LockName})
		k.Restarts++
		k.Last, k.Crashed = describe(status), time.Now()
		k.log.WithField("reason", k.Last).Error("usher exited unexpectedly while the new instance was starting; the new one uses the sockets that the keeper holds")
	}
	k.inherit(k.Current, k.Next)
	k.promote()
}

// dismiss signals the current usher process to exit, and counts it among those that drain. Outside a Pod, a process
// that has handed over exits by itself. In a Pod, or without a lock to hand over, it exits only on a signal.
func (k *keeper) dismiss() {
	k.Draining = append(k.Draining, k.Current)
	if !k.stopRequested { // otherwise this would be a second signal, which resets its connections
		_ = unix.Kill(k.Current.PID, unix.SIGTERM) // it may have exited, but is not reaped
	}
}

// promote makes the next usher process the current one, after it has taken over or the current one has ended.
func (k *keeper) promote() {
	former, next := k.Current, k.Next
	for _, m := range former.Held {
		m.close()
	}
	k.Current, k.Next = next, nil
	k.executeDeferred(next)
}

// upgradeFailed handles the exit of the next usher process before it has taken over.
func (k *keeper) upgradeFailed(why string) {
	if !k.stopRequested {
		k.log.WithField("reason", why).Error("The new usher instance failed to take over; the current one keeps running")
	}
	for _, m := range k.Next.Held {
		m.close()
	}
	k.Next = nil
	k.executeDeferred(k.Current)
}

// executeDeferred executes the messages that an usher process sent while it was undecided whether it continues.
func (k *keeper) executeDeferred(c *child) {
	held := c.Held
	c.Held = nil
	for _, m := range held {
		k.obey(c, m)
	}
}
