package control

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

// process is a running component.
type process struct {
	name  string
	log   string // file
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended
}

// start starts a component in ns and appends its output to a file in dir.
func start(ns *lab.Namespace, dir, name, program string, args ...string) *process {
	GinkgoHelper()
	p := &process{name: name, log: filepath.Join(dir, name+".log"), cmd: exec.Command(program, args...), ended: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	Expect(err).NotTo(HaveOccurred())
	defer log.Close()
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// The kernel kills the process when the thread that started it exits. So that thread stays until the process has
	// ended, and any end of the test's process also ends the component.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	go func() {
		defer GinkgoRecover()
		ns.Do(func() error {
			err := p.cmd.Start()
			started <- err
			if err == nil {
				_ = p.cmd.Wait() // the result does not matter: readiness shows whether it works
			}
			close(p.ended)
			return nil
		})
	}()
	Expect(<-started).To(Succeed(), "starting %s", name)
	return p
}

// stop signals the process, and sends SIGKILL if it does not exit in time.
func (p *process) stop(sig syscall.Signal) {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Signal(sig) // fails if it has exited
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// runs reports whether the process is still running.
func (p *process) runs() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// tail returns the last lines of the process's log.
func (p *process) tail(lines int) string {
	if p == nil {
		return ""
	}
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimRight(text, "\n"), []byte("\n"))
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return fmt.Sprintf("--- %s, last %d lines of %s\n%s\n", p.name, len(all), p.log, bytes.Join(all, []byte("\n")))
}
