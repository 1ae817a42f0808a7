package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// start is the request to start the command.
type start struct {
	Command Command
	Group   int // process group of the namespace's maker
}

// Run runs the command with this process's terminal, standard files and working directory, in this process's group. It
// forwards signals, and returns the exit code as a shell does: the command's own, or 128 plus the number of the signal
// that ended it. An error means that the command could not be started, or that its exit status is unknown. Run may be
// called once.
//
// A terminal sends signals for typed keys to the whole process group: these are not forwarded, since the command has
// received them already.
func (n *Namespace) Run(c Command, signals <-chan os.Signal) (code int, err error) {
	if _, err := n.call(request{Start: &start{Command: c, Group: unix.Getpgrp()}}); err != nil {
		return 0, err
	}
	type end struct {
		status unix.WaitStatus
		err    error
	}
	ended := make(chan end, 1)
	go func() {
		status := make([]byte, 4)
		_, err := io.ReadFull(n.ended, status)
		ended <- end{unix.WaitStatus(binary.NativeEndian.Uint32(status)), err}
	}()
	for {
		select {
		case s := <-signals:
			if s := s.(syscall.Signal); !typed(s) {
				_, _ = n.call(request{Signal: int(s)}) // it may have ended
			}
		case e := <-ended:
			switch {
			case e.err != nil:
				return 0, fmt.Errorf("exit status of the command is unknown: %w", e.err)
			case e.status.Signaled():
				return 128 + int(e.status.Signal()), nil
			}
			return e.status.ExitStatus(), nil
		}
	}
}

// typed reports whether the terminal has sent s to the command too: s is a signal that keys send, and this process
// group is the foreground group.
func typed(s syscall.Signal) bool {
	if s != unix.SIGINT && s != unix.SIGQUIT {
		return false
	}
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// command is the command and its descendants.
type command struct {
	ended     *os.File      // receives the command's exit status
	childless chan struct{} // closed when the command and all its descendants have ended

	mu      sync.Mutex // guards the fields below
	started bool
	pid     int // 0 while it does not run
}

// start starts the command without the helper's capabilities.
func (c *command) start(s *start) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	started := make(chan error)
	go func() {
		// This thread gives up capabilities, and the kernel kills the command when the thread ends (Pdeathsig). So the
		// thread ends with this goroutine, after the command.
		runtime.LockOSThread()
		var pid int
		err := giveUpCapabilities()
		if err == nil {
			pid, err = syscall.ForkExec(s.Command.Path, s.Command.Args, &syscall.ProcAttr{
				Env:   s.Command.Env,
				Files: []uintptr{0, 1, 2},
				Sys:   &syscall.SysProcAttr{Setpgid: true, Pgid: s.Group, Pdeathsig: unix.SIGKILL},
			})
		}
		c.pid = pid
		started <- err
		c.reap(pid)
	}()
	c.started = true
	return <-started
}

// giveUpCapabilities limits the processes that this thread starts to their user's own capabilities: none, unless the
// user is root.
func giveUpCapabilities() error {
	err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	if err != nil && !errors.Is(err, unix.EINVAL) { // a kernel without ambient capabilities has none to drop
		return fmt.Errorf("dropping capabilities: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("dropping capabilities: %w", err)
	}
	data[0].Inheritable, data[1].Inheritable = 0, 0
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("dropping capabilities: %w", err)
	}
	return nil
}

// reap waits for the command and all its descendants, and reports the command's exit status.
func (c *command) reap(command int) {
	defer close(c.childless)
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return
		case pid == command:
			c.mu.Lock()
			c.pid = 0
			c.mu.Unlock()
			_, _ = c.ended.Write(binary.NativeEndian.AppendUint32(nil, uint32(status))) // fails if the maker has exited
		}
	}
}

func (c *command) signal(s unix.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pid == 0 {
		return errors.New("the command is not running")
	}
	return unix.Kill(c.pid, s)
}

// endAll kills the command and all its descendants. When a process dies, its children become children of this process.
func (c *command) endAll() {
	c.mu.Lock()
	started := c.started
	c.mu.Unlock()
	for started {
		for _, pid := range children() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		select {
		case <-c.childless:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// children returns the child processes of this one.
func children() (pids []int) {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(dir.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + dir.Name() + "/stat")
		if err != nil {
			continue // it has just ended
		}
		// After the name, which may contain any character: state, parent (proc(5)).
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(os.Getpid()) {
			pids = append(pids, pid)
		}
	}
	return pids
}
