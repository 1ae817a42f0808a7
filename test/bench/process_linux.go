package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/usherproxy/usher/test/bench/load"
)

// process is a program on a stage.
type process struct {
	cmd  *exec.Cmd
	in   io.Closer
	out  *bufio.Reader
	said bytes.Buffer // standard error
	done chan struct{}

	started time.Time
}

// start starts a program on the stage. It ends with the stage's thread at the latest. It is the first process of a
// dedicated PID namespace, so that its children end with it.
func (s *stage) start(name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWPID}
	p.cmd.Stderr = &p.said
	p.cmd.WaitDelay = time.Second
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	// Not cmd.StdoutPipe, which Wait closes: the output remains readable after the process has ended.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout, p.out = w, bufio.NewReader(r)
	p.started = time.Now()
	err = s.do(p.cmd.Start)
	w.Close()
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// line returns the next line that the process prints to standard output.
func (p *process) line() (string, error) {
	line, err := p.out.ReadString('\n')
	if err != nil {
		return "", p.gone()
	}
	return strings.TrimSuffix(line, "\n"), nil
}

// gone returns the error for a process that ended too early.
func (p *process) gone() error {
	<-p.done
	return fmt.Errorf("%s ended: %s: %s", strings.Join(p.cmd.Args, " "), p.cmd.ProcessState, p.last(1000))
}

// last returns the last n bytes that an ended process wrote to standard error.
func (p *process) last(n int) []byte {
	said := bytes.TrimSpace(p.said.Bytes())
	return said[max(len(said)-n, 0):]
}

// running returns an error once the process has ended.
func (p *process) running() error {
	select {
	case <-p.done:
		return p.gone()
	default:
		return nil
	}
}

// finish closes the process's standard input, and waits until it ends.
func (p *process) finish() {
	p.in.Close()
	<-p.done
}

// stop ends the process and its children.
func (p *process) stop() {
	p.in.Close()
	_ = p.cmd.Process.Kill()
	<-p.done
}

// pids returns the process and its children, oldest first. The measured programs have no grandchildren.
func (p *process) pids() ([]int, error) {
	pid := p.cmd.Process.Pid
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil, err
	}
	pids := []int{pid}
	for _, field := range strings.Fields(string(list)) {
		child, err := strconv.Atoi(field)
		if err != nil {
			return nil, err
		}
		pids = append(pids, child)
	}
	return pids, nil
}

// usage is a program's resource usage, its children included.
type usage struct {
	cpu         time.Duration // user and system time since it started
	resident    int64         // bytes
	descriptors int
}

func (p *process) usage() (usage, error) {
	pids, err := p.pids()
	if err != nil {
		return usage{}, err
	}
	var all usage
	for _, pid := range pids {
		cpu, errCPU := load.CPUTime(pid)
		resident, errMemory := kilobytes(fmt.Sprintf("/proc/%d/status", pid), "VmRSS:")
		open, errOpen := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err := errors.Join(errCPU, errMemory, errOpen); err != nil {
			return usage{}, err
		}
		all.cpu += cpu
		all.resident += resident << 10
		all.descriptors += len(open)
	}
	return all, nil
}

// available returns how many bytes the whole system could still give to programs.
func available() (int64, error) {
	kB, err := kilobytes("/proc/meminfo", "MemAvailable:")
	return kB << 10, err
}

// kilobytes returns the number in the line of a /proc file that begins with name.
func kilobytes(file, name string) (int64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			return strconv.ParseInt(strings.Fields(value)[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s: no line %s", file, name)
}
