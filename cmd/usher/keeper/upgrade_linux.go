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

// SIGHUP replaces the program without a gap: the keeper becomes the program that is at
// its path by now, as the same process (execve(2)), with all descriptors and children. As
// such it starts an usher that takes over from the one that runs (--take-over). If that
// one does not begin to serve, the other goes on.

// stateVariable holds the descriptor of a file with the keeper's state.
const stateVariable = "USHER_KEEPER_STATE"

// tryTime is how long a program may take to say what it can, and hearEvery how often
// usher is heard meanwhile.
const (
	tryTime   = 10 * time.Second
	hearEvery = 10 * time.Millisecond
)

// upgrade replaces the program, unless that is not possible.
func (k *keeper) upgrade() {
	if k.told || k.Current != nil && k.Current.Stopping {
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

// try reports whether the program is one that can go on with these arguments: an usher
// that has no keepers, for instance, would end, and nobody would keep anything. It is no
// other child's time: nobody else waits for children meanwhile. But what usher says is
// heard, or it would take the keeper for dead.
func (k *keeper) try() error {
	ctx, cancel := context.WithTimeout(context.Background(), tryTime)
	defer cancel()
	tried := make(chan error, 1)
	go func() {
		cmd := exec.CommandContext(ctx, k.Program, append(slices.Clone(k.Arguments[1:]), "--help")...)
		cmd.WaitDelay = time.Second // for its children, which may have its output
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

// become returns only if it cannot be done.
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

	// A signal that comes now waits until the new program asks for it.
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
		set.Val[bit/strconv.IntSize] |= 1 << (bit % strconv.IntSize) // the kernel's long is as an int
	}
	return set
}

// Replaced reports whether this program has taken the place of a keeper, which Resume
// then goes on as; and how its log is.
func Replaced() (level, format string, is bool) {
	s, err := resumed()
	if err != nil {
		return "", "", false
	}
	return s.LogLevel, s.LogFormat, true
}

// resumed returns the state that the environment leads to.
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

// Resume goes on as the keeper whose program this one has replaced.
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

// replace starts an usher that takes over from the one that runs.
func (k *keeper) replace() {
	if k.Current == nil {
		k.start()
		return
	}
	names, fds := k.all("lock") // that one has it
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

// nextEnded is called when the next usher has ended.
func (k *keeper) nextEnded(status unix.WaitStatus) (code int, over bool) {
	if k.told || !k.Current.stops() {
		k.inherit(k.Next, k.Current)
		k.upgradeFailed(describe(status))
		return 0, false
	}
	k.dismiss() // it had taken over, and the other one does not serve any more
	k.promote()
	return k.ended(status)
}

// currentGone is called when the usher that runs has ended, and the next one goes on.
func (k *keeper) currentGone(status unix.WaitStatus) {
	if !k.told && !k.Current.stops() {
		k.remove("lock") // or the next one waited for the answer of who has it
		k.Restarts++
		k.Last = describe(status)
		k.log.WithField("reason", k.Last).Error("usher exited unexpectedly while the new instance was starting; the new one continues with its sockets")
	}
	k.inherit(k.Current, k.Next)
	k.promote()
}

// dismiss tells the usher that runs to end. Who has handed over does so already, but waits
// in a Pod to be told; who has no lock to hand over would go on for ever.
func (k *keeper) dismiss() {
	if !k.told { // or a second signal would break its connections
		_ = unix.Kill(k.Current.PID, unix.SIGTERM) // it may have ended, but is not reaped
	}
}

// promote is called when the next usher has taken over.
func (k *keeper) promote() {
	former, next := k.Current, k.Next
	k.Draining = append(k.Draining, former)
	for _, m := range former.Held {
		m.close()
	}
	k.Current, k.Next = next, nil
	k.settle(next)
}

// upgradeFailed is called when the next usher has ended instead of taking over.
func (k *keeper) upgradeFailed(why string) {
	k.log.WithField("reason", why).Error("The new usher instance failed to take over; the current one keeps running")
	for _, m := range k.Next.Held {
		m.close()
	}
	k.Next = nil
	k.settle(k.Current)
}

// settle does what an usher has said while it was not known whether it goes on.
func (k *keeper) settle(c *child) {
	held := c.Held
	c.Held = nil
	for _, m := range held {
		k.obey(c, m)
	}
}
