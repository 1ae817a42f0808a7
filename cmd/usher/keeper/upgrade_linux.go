package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// SIGHUP replaces the program without an interruption: the keeper executes the program that
// is now at its path, as the same process (execve(2)), with all descriptors and children.
// The new program starts an usher process that takes over from the running one
// (--take-over). If the new process does not begin to serve, the old one continues.

// stateVariable holds the descriptor of a file with the keeper's state.
const stateVariable = "USHER_KEEPER_STATE"

// tryTime is the time limit for the trial run of a program, and hearEvery the interval in
// which the keeper reads usher's messages meanwhile.
const (
	tryTime   = 10 * time.Second
	hearEvery = 10 * time.Millisecond
)

// upgrade replaces the program, if possible.
func (k *keeper) upgrade() {
	if k.stopRequested || k.Current != nil && k.Current.Stopping {
		return
	}
	if k.Next != nil {
		k.log.Info("Replacing the program again once the new usher instance serves")
		k.again = true
		return
	}
	err := k.try()
	if err == nil {
		err = k.become(k.Program)
	}
	k.log.WithField("program", k.Program).WithError(err).Error("Cannot run the program; keeping the current keeper and usher")
}

// try checks that the program supports these arguments: a version without --keeper, for
// instance, would exit, and no process would keep the descriptors. The loop reaps no children
// meanwhile, so that only package exec waits for the tried program. But try receives usher's messages,
// or usher would consider the keeper dead.
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
	text, err := json.Marshal(k.state)
	if err != nil {
		return err
	}
	file, err := unix.MemfdCreate("usher keeper", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	defer unix.Close(file)
	for rest := text; len(rest) > 0; {
		n, err := unix.Write(file, rest)
		if err != nil {
			return os.NewSyscallError("write", err)
		}
		rest = rest[n:]
	}
	_, fds := k.all()
	fds = append(append(fds, k.descriptors()...), k.Socket, file)
	for _, fd := range fds {
		keepAcrossExec(fd, true)
	}
	defer func() {
		for _, fd := range fds {
			keepAcrossExec(fd, false)
		}
	}()

	// A signal that arrives now stays pending until the new program unblocks it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before unix.Sigset_t
	blocked := sigset(append(slices.Clone(forwarded), unix.SIGHUP)...)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &blocked, &before); err != nil {
		return os.NewSyscallError("pthread_sigmask", err)
	}
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) }()
	return syscall.Exec(program, k.Arguments, append(os.Environ(), stateVariable+"="+strconv.Itoa(file)))
}

func sigset(signals ...os.Signal) (set unix.Sigset_t) {
	for _, s := range signals {
		bit := int(s.(syscall.Signal)) - 1
		set.Val[bit/strconv.IntSize] |= 1 << (bit % strconv.IntSize) // int has the size of the kernel's long
	}
	return set
}

// Replaced reports whether this program has replaced the program of a keeper. Resume then
// continues that keeper. Replaced returns the settings of the keeper's log.
func Replaced() (level, format string, is bool) {
	s, err := resumed()
	if err != nil {
		return "", "", false
	}
	return s.LogLevel, s.LogFormat, true
}

// resumed returns the state from the file that the environment names.
func resumed() (s state, err error) {
	file, err := strconv.Atoi(os.Getenv(stateVariable))
	if err != nil {
		return s, errors.New("no state from a previous keeper")
	}
	text, err := io.ReadAll(io.NewSectionReader(pread(file), 0, 1<<30))
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(text, &s)
}

// pread reads a descriptor without owning it.
type pread int

func (fd pread) ReadAt(b []byte, at int64) (int, error) {
	n, err := unix.Pread(int(fd), b, at)
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, err
}

// Resume continues the keeper whose program this one has replaced.
func Resume(log logrus.FieldLogger) (code int) {
	s, err := resumed()
	if err != nil {
		log.WithError(err).Error("Keeper cannot resume")
		return 1
	}
	file, _ := strconv.Atoi(os.Getenv(stateVariable)) // resumed has read it
	os.Unsetenv(stateVariable)
	unix.Close(file)
	k := &keeper{log: log, state: s}
	k.Kept = map[string][]int{}
	for name, fds := range s.Kept {
		k.put(name, fds)
	}
	_, fds := k.all()
	for _, fd := range append(append(fds, k.descriptors()...), k.Socket) {
		keepAcrossExec(fd, false)
	}
	k.manager = newManager(log)
	return k.run(k.replace)
}

// replace starts an usher process that takes over from the running one.
func (k *keeper) replace() {
	if k.Current == nil {
		k.start()
		return
	}
	names, fds := k.all("lock") // the running process holds it
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

// currentGone handles the exit of the current usher process while the next one is starting.
func (k *keeper) currentGone(status unix.WaitStatus) {
	if !k.stopRequested && !k.Current.stops() {
		k.remove("lock") // otherwise the next process would wait for an answer of the lock's holder
		k.Restarts++
		k.Last, k.Crashed = describe(status), time.Now()
		k.log.WithField("reason", k.Last).Error("usher exited unexpectedly while the new instance was starting; the new one continues with its sockets")
	}
	k.inherit(k.Current, k.Next)
	k.promote()
}

// dismiss signals the current usher process to exit. Outside a Pod, a process that has handed over
// exits by itself. In a Pod, or without a lock to hand over, it exits only on a signal.
func (k *keeper) dismiss() {
	if !k.stopRequested { // otherwise this would be a second signal, which resets its connections
		_ = unix.Kill(k.Current.PID, unix.SIGTERM) // it may have exited, but is not reaped
	}
}

// promote makes the next usher process the current one, after it has taken over.
func (k *keeper) promote() {
	former, next := k.Current, k.Next
	k.Draining = append(k.Draining, former)
	for _, m := range former.Held {
		m.close()
	}
	k.Current, k.Next = next, nil
	k.executeDeferred(next)
}

// upgradeFailed handles the exit of the next usher process before it has taken over.
func (k *keeper) upgradeFailed(why string) {
	k.log.WithField("reason", why).Error("The new usher instance failed to take over; the current one keeps running")
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
