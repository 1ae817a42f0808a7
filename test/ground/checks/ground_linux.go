package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ground is the environment of the checks, and the usher process that they use.
type ground struct {
	// addr4 and addr6 are the endpoints' addresses; invalid if the ground has no address of the family.
	addr4, addr6 netip.Addr
	manifests    string
	running      *process
	portal       string // of running
}

// newGround determines the ground's addresses: the first non-loopback one of each family. If the ground has only
// loopback, endpoints use that.
func newGround() (*ground, error) {
	manifests, err := os.MkdirTemp(*dir, "manifests-")
	if err != nil {
		return nil, err
	}
	g := &ground{manifests: manifests}
	for _, loopback := range []bool{false, true} {
		all, err := net.InterfaceAddrs()
		if err != nil { // no /proc or netlink
			all = nil
		}
		for _, a := range all {
			addr := netip.MustParsePrefix(a.String()).Addr()
			if addr.IsLinkLocalUnicast() || addr.IsLoopback() != loopback {
				continue
			}
			if addr.Is4() && !g.addr4.IsValid() {
				g.addr4 = addr
			}
			if addr.Is6() && !g.addr6.IsValid() {
				g.addr6 = addr
			}
		}
		if g.addr4.IsValid() || g.addr6.IsValid() {
			return g, nil
		}
	}
	return nil, errors.New("this ground has no address")
}

// addr returns the address for endpoints whose family does not matter.
func (g *ground) addr() netip.Addr {
	if g.addr4.IsValid() {
		return g.addr4
	}
	return g.addr6
}

// service is a Service with its endpoints and one port. Its family is that of its endpoints.
type service struct {
	name      string
	n         byte // of its VIP
	protocol  string
	endpoints []netip.AddrPort
	spec      string // a further line
	v6        bool
}

// port is the port of each Service.
const port = 8000

func (s service) write(g *ground) error {
	family := "IPv4"
	if s.v6 {
		family = "IPv6"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: default}\nspec:\n  clusterIP: %q\n  ipFamilies: [%s]\n", s.name, vip(s.v6, s.n), family)
	fmt.Fprintf(&b, "  ports: [{name: main, port: %d, protocol: %s}]\n%s", port, s.protocol, s.spec)
	for i, e := range s.endpoints {
		fmt.Fprintf(&b, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s-%d, namespace: default, labels: {kubernetes.io/service-name: %[1]s}}\n", s.name, i)
		fmt.Fprintf(&b, "addressType: %s\nports: [{name: main, port: %d, protocol: %s}]\nendpoints: [{addresses: [%q], conditions: {ready: true}}]\n", family, e.Port(), s.protocol, e.Addr())
	}
	path := filepath.Join(g.manifests, s.name+".yaml")
	if err := os.WriteFile(path+".new", []byte(b.String()), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// A process is an usher process and its output.
type process struct {
	cmd      *exec.Cmd
	ended    chan struct{}
	out, log output
}

// output is the output of a process.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if *debugLog {
		_, _ = os.Stderr.Write(b)
	}
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// launch starts usher.
func launch(args ...string) (*process, error) { return launchProgram(*usher, args...) }

// kubectlUsher returns the path of kubectl-usher, next to usher.
func kubectlUsher() string { return filepath.Join(filepath.Dir(*usher), "kubectl-usher") }

func launchProgram(program string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(program, args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.log
	p.cmd.Stdin = strings.NewReader("") // there may be no /dev/null
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // ProcessState has the result
		close(p.ended)
	}()
	return p, nil
}

// end waits until the process has ended, and returns its exit code.
func (p *process) end() (int, error) {
	select {
	case <-p.ended:
		if strings.Contains(p.log.String(), "panic:") {
			return 0, errors.New("usher panicked")
		}
		return p.cmd.ProcessState.ExitCode(), nil
	case <-time.After(*patience):
		p.kill()
		<-p.ended // the next process needs its ports
		return 0, fmt.Errorf("the previous usher %s does not exit", p.cmd.Args[1])
	}
}

// kill kills usher and its child processes. All of them may have ended.
func (p *process) kill() { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }

// command runs usher until it ends, and returns its output. A nonzero exit code is an error.
func command(args ...string) (string, error) { return commandOf(*usher, args...) }

func commandOf(program string, args ...string) (string, error) {
	p, err := launchProgram(program, args...)
	if err != nil {
		return "", err
	}
	code, err := p.end()
	if err == nil && code != 0 {
		err = errors.New(p.reason())
	}
	return p.out.String(), err
}

// reason returns the last message of a process, without its prefix.
func (p *process) reason() string {
	lines := strings.Split(strings.TrimSpace(p.log.String()), "\n")
	if out := strings.TrimSpace(p.out.String()); lines[0] == "" {
		lines = strings.Split(out, "\n")
	}
	return strings.TrimPrefix(lines[len(lines)-1], "usher: ")
}

var serving = regexp.MustCompile(`msg=Serving portal=(\w+)`)

// start starts usher, waits until it serves, and stores it as the running process.
func (g *ground) start(flags ...string) (*process, error) {
	p, err := launch(append([]string{"run", "--manifests", g.manifests, "--log-format=text", "--dial-timeouts=" + *dialFor}, flags...)...)
	if err != nil {
		return nil, err
	}
	g.running = p
	err = eventually(func() error {
		if m := serving.FindStringSubmatch(p.log.String()); m != nil {
			g.portal = m[1]
			return nil
		}
		select {
		case <-p.ended:
			return final{errors.New(p.reason())}
		default:
			return errors.New("usher does not serve: " + p.reason())
		}
	})
	return p, err
}

// stop ends the running usher process, if any, with a signal.
func (g *ground) stop(s syscall.Signal) error {
	if g.running == nil {
		return nil
	}
	if s == syscall.SIGKILL {
		g.running.kill()
	} else {
		_ = g.running.cmd.Process.Signal(s) // it may have ended
	}
	code, err := g.running.end()
	if err == nil && code != 0 && s != syscall.SIGKILL {
		err = fmt.Errorf("exit code %d after %s: %s", code, s, g.running.reason())
	}
	g.running = nil
	return err
}

// final is an error that ends waiting.
type final struct{ error }

// eventually waits until f succeeds.
func eventually(f func() error) error {
	for deadline := time.Now().Add(*patience); ; time.Sleep(20 * time.Millisecond) {
		err := f()
		if f, ok := err.(final); ok {
			return f.error
		}
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// served is a Service in the output of `usher get services`.
type served struct {
	Name, State string
	Ports       []struct {
		Listener string
		Problem  problem
	}
	Problems []problem
	Totals   struct{ Retries int }
}

type problem struct{ Message string }

func (g *ground) get(name string) (served, error) {
	out, err := command("get", "services", name, "-o", "json")
	if err != nil {
		return served{}, err
	}
	var list struct{ Items []served }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return served{}, err
	}
	if len(list.Items) != 1 || len(list.Items[0].Ports) != 1 {
		return served{}, fmt.Errorf("usher get services %s: %s", name, out)
	}
	return list.Items[0], nil
}

// at returns the address on which clients reach a Service: its VIP, or usher's listener if there is no portal. If usher
// does not serve the Service, at returns an error with the reason from usher.
func (g *ground) at(s service) (string, error) {
	got, err := g.get(s.name)
	if err != nil {
		return "", err
	}
	for _, p := range append(got.Problems, got.Ports[0].Problem) {
		if p.Message != "" {
			return "", errors.New(p.Message)
		}
	}
	if g.portal == "none" {
		return got.Ports[0].Listener, nil
	}
	return netip.AddrPortFrom(vip(s.v6, s.n), port).String(), nil
}
