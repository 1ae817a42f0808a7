package keeper

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal/fdstore"
)

// child is an usher process that the keeper has started.
type child struct {
	pid      int
	ready    bool       // it serves
	since    time.Time  // when it began to serve
	stopping bool       // it ends as requested, or has handed over
	held     []*message // received during an upgrade; wait until it is decided which process continues
	program  *os.File   // set if an upgrade has started the child

	channel int             // the keeper's end of the socket on which the child saves connections, 0 without one
	over    <-chan struct{} // closed when no goroutine uses channel
	areas   []*area         // saved connections: the child's, and those inherited from children that have exited
}

// stops reports whether the child has announced that it ends as requested or has handed over. It considers the held
// messages only.
func (c *child) stops() bool {
	return slices.ContainsFunc(c.held, func(m *message) bool { return m.says("STOPPING") })
}

// heartbeat is the watchdog interval for usher's reports to the keeper, unless the service manager sets one. From a
// report that cannot be sent, usher concludes that the keeper no longer reads.
const heartbeat = 20 * time.Second

// start starts usher, and passes it all kept descriptors. If that fails, it schedules another attempt.
func (k *keeper) start() {
	k.pause.end()
	k.pause = nil
	if len(k.taken) > 0 {
		return // the loop is about to leave
	}
	names, fds := k.all()
	c, err := k.spawn(k.program, k.Arguments, names, fds)
	if err == nil {
		k.current = c
		k.assign(k.orphans, c)
		k.orphans = nil
		return
	}
	k.Log.WithError(err).Error("Failed to start usher")
	k.failures = max(k.failures, 1) + 1
	k.begin(k.restartDelay())
}

// spawn starts an usher process.
func (k *keeper) spawn(program *os.File, arguments, names []string, fds []int) (*child, error) {
	files := []uintptr{0, 1, 2}
	for _, fd := range fds {
		files = append(files, uintptr(fd))
	}
	ours, theirs, err := channel()
	if err != nil {
		k.Log.WithError(err).Warn("Cannot create a socket; open connections will be lost if usher crashes")
	} else {
		names, files = append(names, fdstore.ConnectionsName), append(files, uintptr(theirs))
		defer unix.Close(theirs)
	}
	// A separate process group keeps Ctrl-C from arriving twice: only the keeper forwards it.
	pid, err := syscall.ForkExec(k.pathOf(program), arguments, &syscall.ProcAttr{
		Env: k.environment(names), Files: files, Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		if ours > 0 {
			unix.Close(ours)
		}
		return nil, err
	}
	if k.score != "" {
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(k.score), 0) // it may have ended
	}
	c := &child{pid: pid, channel: ours}
	k.listenTo(c)
	return c, nil
}

// environment returns usher's environment: the keeper's, plus variables for the kept descriptors.
func (k *keeper) environment(names []string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(fdstore.Variables, name)
	})
	watchdog := heartbeat
	if k.manager != nil && k.manager.watchdog > 0 {
		watchdog = k.manager.watchdog
	}
	return append(env,
		"NOTIFY_SOCKET="+k.address,
		"LISTEN_FDS="+strconv.Itoa(len(names)),
		"LISTEN_FDNAMES="+strings.Join(names, ":"),
		"WATCHDOG_USEC="+strconv.FormatInt(watchdog.Microseconds(), 10),
		fmt.Sprintf("%s=restarts=%d at=%d last=%s", fdstore.KeeperVariable, k.restarts, k.crashed.Unix(), k.last))
}

// find returns the path of the program that was started as name, without resolving symbolic links, so that an upgrade
// follows a changed link.
func (k *keeper) find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err == nil && isAt(path, k.program) {
		return path, nil
	}
	return os.Executable()
}

// pathOf returns a path of a program: the keeper's path, unless that file has been replaced.
func (k *keeper) pathOf(program *os.File) string {
	if isAt(k.path, program) {
		return k.path
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), program.Fd())
}

func isAt(path string, file *os.File) bool {
	this, err1 := os.Stat(path)
	that, err2 := file.Stat()
	return err1 == nil && err2 == nil && os.SameFile(this, that)
}

// use makes k start this program from now on.
func (k *keeper) use(program *os.File) {
	k.program.Close()
	k.program = program
}

// Values of oom_score_adj for a process that the kernel never kills when out of memory, and
// for one that it hardly ever kills (proc_pid_oom_score_adj(5)).
const (
	never  = "-1000"
	rarely = "-900"
)

// protect keeps the kernel from killing the keeper when out of memory, if the keeper may
// change that (CAP_SYS_RESOURCE). usher gets the keeper's former value. If that is -1000,
// which was meant for the keeper, usher gets -900.
func (k *keeper) protect() {
	const file = "/proc/self/oom_score_adj"
	was, err := os.ReadFile(file)
	if err != nil || os.WriteFile(file, []byte(never), 0) != nil {
		return
	}
	if k.score = strings.TrimSpace(string(was)); k.score == never {
		k.score = rarely
	}
}
