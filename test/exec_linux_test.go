package test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/creack/pty"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/test/lab"
)

// nobody is a non-root user without capabilities.
const nobody = 65534

var _ = Describe("kubectl usher exec, as a non-root user", func() {
	var (
		l         *lab.Lab
		node      *lab.Namespace // with a /dev/net/tun as udev makes it
		home      string         // the command's working directory, writable for the user
		manifests string
		program   string
	)
	BeforeEach(func() {
		for _, program := range []string{"curl", "dig", "getent", "pgrep", "python3"} {
			missing(program)
		}
		lab.UserNamespaces()
		l = lab.New()
		node = l.Node.WithTun(0o666)
		home = openDir()
		manifests = filepath.Join(home, "manifests")
		Expect(os.Mkdir(manifests, 0o777)).To(Succeed())
		Expect(os.Chmod(manifests, 0o777)).To(Succeed())
		program = filepath.Join(home, "kubectl-usher")
		Expect(os.Link(kubectlUsher(), program)).To(Or(Succeed(), MatchError(syscall.EXDEV)))
		if _, err := os.Stat(program); err != nil {
			Expect(exec.Command("cp", kubectlUsher(), program).Run()).To(Succeed())
		}
		web := service{name: "web", clusterIP: "10.96.0.10", port: 80}
		for n := range 3 {
			at := netip.AddrPortFrom(lab.Pod(n+1), 8080)
			serveText(l.Pods, at.String(), fmt.Sprintf("Pod %d\n", n+1))
			web.endpoints = append(web.endpoints, at)
		}
		web.write(manifests)
	})

	// command returns kubectl usher exec in the node's network, as nobody.
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command(program, append([]string{"exec", "--manifests", manifests}, args...)...)
		cmd.Dir = home
		cmd.Env = append(os.Environ(), "HOME="+home)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		return cmd
	}
	start := func(cmd *exec.Cmd) *gexec.Session {
		GinkgoHelper()
		return launch(node, cmd, manifests).Session
	}
	// output runs a script inside, which must succeed.
	output := func(script string) string {
		GinkgoHelper()
		s := start(command("--", "sh", "-euc", script))
		Eventually(s).WithTimeout(30 * time.Second).Should(gexec.Exit(0))
		Expect(s.Err.Contents()).To(BeEmpty())
		return string(s.Out.Contents())
	}

	It("reaches Services by name, over TCP and UDP, also those of another proxy; sets their variables, and gives no capabilities", func() {
		echo := startUDPEcho(l.Pods, netip.AddrPortFrom(lab.Pod(1), 7))
		service{name: "echo", clusterIP: "10.96.0.14", port: 5007, protocol: "UDP", endpoints: []netip.AddrPort{echo}}.write(manifests)
		at := netip.AddrPortFrom(lab.Pod(1), 8081)
		serveText(l.Pods, at.String(), "labeled\n")
		service{name: "labeled", clusterIP: "10.96.0.15", port: 80, metadata: `, labels: {service.kubernetes.io/service-proxy-name: usher}`, endpoints: []netip.AddrPort{at}}.write(manifests)
		GinkgoT().Setenv("WEB_SERVICE_HOST", "192.0.2.99") // the command gets another value
		said := strings.Split(output(`
			for name in web web.default web.default.svc.cluster.local; do curl -fsS http://$name/; done
			curl -sS http://labeled/
			getent hosts web | tr -s ' '
			dig +short SRV _main._tcp.web.default.svc.cluster.local
			env | grep WEB_SERVICE_ | sort
			grep -E 'Cap(Inh|Prm|Eff|Amb)' /proc/self/status | sort -u -k2 | cut -f2
			python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(30)
s.sendto(b"hello", ("echo", 5007))
print(s.recvfrom(100))'`), "\n")
		Expect(len(said)).To(BeNumerically(">", 3))
		Expect(said[:3]).To(ConsistOf("Pod 1", "Pod 2", "Pod 3"), "all endpoints")
		Expect(said[3:]).To(HaveExactElements("labeled", "10.96.0.10 web.default.svc.cluster.local", "0 100 80 web.default.svc.cluster.local.",
			"WEB_SERVICE_HOST=10.96.0.10", "WEB_SERVICE_PORT=80", "WEB_SERVICE_PORT_MAIN=80", "0000000000000000", "(b'hello', ('10.96.0.14', 5007))", ""))
	})

	It("starts the user's shell with USHER_EXEC set if no command is given", func() {
		for shell, args := range map[string][]string{"SHELL=/bin/bash": nil, "SHELL=": {"-n", "shop"}} {
			cmd := command(args...)
			cmd.Env = append(cmd.Env, shell)
			cmd.Stdin = strings.NewReader(`echo "$0 in $USHER_EXEC"` + "\n")
			s := start(cmd)
			Eventually(s).WithTimeout(30 * time.Second).Should(gexec.Exit(0))
			want := "/bin/bash in default\n"
			if args != nil {
				want = "/bin/sh in shop\n"
			}
			Expect(string(s.Out.Contents())).To(Equal(want))
		}
	})

	It("keeps localhost and other networks reachable", func() {
		serveText(l.Node, "127.0.0.1:3000", "on IPv4's loopback\n")
		serveText(l.Node, "[::1]:3001", "on IPv6's loopback\n")
		serveText(l.Outside, "192.0.2.2:8000", "elsewhere\n")
		serveText(l.Outside, "[2001:db8::2]:8000", "elsewhere, by IPv6\n")
		Expect(output(`
			for at in 127.0.0.1:3000 [::1]:3001 localhost:3000 192.0.2.2:8000 [2001:db8::2]:8000; do curl -fsS http://$at/; done
			for refuses in 192.0.2.2:8001 127.0.0.1:3002; do curl -sS http://$refuses/ 2>&1 || true; done`)).
			To(MatchRegexp("^on IPv4's loopback\non IPv6's loopback\non IPv4's loopback\nelsewhere\nelsewhere, by IPv6\n.*Failed to connect.*\n.*Failed to connect.*\n$"))
	})

	It("gives localhost ports to servers inside, and forwards to servers started outside later", func() {
		s := start(command("--", "sh", "-euc", `
			mkdir inside && echo inside > inside/index.html
			python3 -m http.server --bind 127.0.0.1 --directory inside 3003 >/dev/null 2>&1 &
			until curl -fs http://127.0.0.1:3003/; do sleep 0.05; done
			until curl -fs http://127.0.0.1:3004/; do sleep 0.05; done
			curl -fs http://127.0.0.1:3003/`))
		Eventually(s).WithTimeout(time.Minute).Should(gbytes.Say("inside"))
		serveText(l.Node, "127.0.0.1:3003", "outside\n")
		serveText(l.Node, "127.0.0.1:3004", "later\n")
		Eventually(s).WithTimeout(time.Minute).Should(gexec.Exit(0))
		Expect(string(s.Out.Contents())).To(Equal("inside\nlater\ninside\n"))
	})

	It("reaches a Service that is added later", func() {
		s := start(command("--", "sh", "-euc", `echo ready; until curl -fs http://late.default.svc.cluster.local/; do sleep 0.05; done`))
		Eventually(s).WithTimeout(time.Minute).Should(gbytes.Say("ready"))
		service{name: "late", clusterIP: "10.96.0.20", port: 80, endpoints: []netip.AddrPort{netip.AddrPortFrom(lab.Pod(1), 8080)}}.write(manifests)
		written := time.Now()
		Eventually(s).WithTimeout(30 * time.Second).Should(gexec.Exit(0))
		AddReportEntry("from a manifest to the end of the command that waits for its Service", time.Since(written).String())
	})

	It("exits with the command's exit code, 128 plus its signal, 127 if it does not exist, or 126 if it is not executable", func() {
		for _, c := range []struct {
			code  int
			words []string
		}{{7, []string{"sh", "-c", "exit 7"}}, {128 + 9, []string{"sh", "-c", "kill -9 $$"}}, {127, []string{"no-such-command"}}, {126, []string{"/etc/passwd"}}} {
			s := start(command(append([]string{"--"}, c.words...)...))
			Eventually(s).WithTimeout(time.Minute).Should(gexec.Exit(c.code), "%v", c.words)
		}
	})

	It("runs the command with unchanged user, working directory, input, output and arguments", func() {
		cmd := command("sh", "-c", `id -u; pwd; cat; echo "$0 $1" >&2; touch made`, "zero", "--trace")
		cmd.Stdin = strings.NewReader("from outside\n")
		s := start(cmd)
		Eventually(s).WithTimeout(time.Minute).Should(gexec.Exit(0))
		Expect(string(s.Out.Contents())).To(Equal(fmt.Sprintf("%d\n%s\nfrom outside\n", nobody, home)))
		Expect(string(s.Err.Contents())).To(Equal("zero --trace\n"))
		made, err := os.Stat(filepath.Join(home, "made"))
		Expect(err).NotTo(HaveOccurred())
		Expect(made.Sys().(*syscall.Stat_t).Uid).To(BeEquivalentTo(nobody))
	})

	It("forwards SIGTERM and SIGINT to the command if it has no terminal", func() {
		for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
			s := start(command("--", "sh", "-c", `trap "exit 3" TERM INT; echo ready; while :; do sleep 0.05; done`))
			Eventually(s).WithTimeout(time.Minute).Should(gbytes.Say("ready"))
			s.Signal(signal)
			Eventually(s).WithTimeout(30 * time.Second).Should(gexec.Exit(3))
		}
	})

	It("leaves the terminal to the command: job control, Ctrl-C, Ctrl-Z", func() {
		missing("bash")
		cmd := command("--", "bash", "--norc", "-i")
		cmd.Env = append(cmd.Env, "PS1=ready> ", "TERM=dumb")
		terminal := startPTY(node, cmd)
		Eventually(terminal.seen).WithTimeout(time.Minute).Should(gbytes.Say("ready> "))
		own, err := terminal.foreground()
		Expect(err).NotTo(HaveOccurred())
		terminal.enter("sh -c 'trap \"echo caught $((40+2)); exit 9\" INT; echo started $((40+2)); sleep 1000 & wait'\n")
		Eventually(terminal.seen).WithTimeout(30 * time.Second).Should(gbytes.Say("started 42")) // not the echo of the input
		terminal.enter("\x1a")                                                                   // Ctrl-Z
		Eventually(terminal.seen).WithTimeout(30 * time.Second).Should(gbytes.Say("Stopped.*sleep 1000"))
		terminal.enter("fg\n")
		// bash prints the command before it gives it the terminal.
		Eventually(terminal.foreground).WithTimeout(30 * time.Second).ShouldNot(Equal(own))
		terminal.enter("\x03") // Ctrl-C
		Eventually(terminal.seen).WithTimeout(30 * time.Second).Should(gbytes.Say("caught 42"))
		Eventually(terminal.foreground).WithTimeout(30 * time.Second).Should(Equal(own))
		terminal.enter("exit 5\n")
		Eventually(terminal.ended).WithTimeout(30 * time.Second).Should(Receive(Equal(5)))
	})

	// filesOfNobody returns the temporary files of user nobody whose names begin with usher.
	filesOfNobody := func() (files []string) {
		GinkgoHelper()
		all, err := filepath.Glob(filepath.Join(os.TempDir(), "usher*"))
		Expect(err).NotTo(HaveOccurred())
		for _, file := range all {
			if strings.HasPrefix(filepath.Base(file), "usher-demo-") { // another spec runs it as nobody
				continue
			}
			if info, err := os.Stat(file); err == nil && info.Sys().(*syscall.Stat_t).Uid == nobody {
				files = append(files, file)
			}
		}
		return files
	}
	DescribeTable("leaves no processes, rules or files behind",
		func(end func(*gexec.Session)) {
			before, files := lab.State(l.Node), filesOfNobody()
			s := start(command("--", "sh", "-c", `
				sleep 1000 & echo child $!
				setsid sh -c 'echo daemon $$; exec sleep 1000' &
				echo ready; trap "exit 0" INT; wait`))
			Eventually(s).WithTimeout(time.Minute).Should(gbytes.Say("ready"))
			var pids [][]string
			Eventually(func() [][]string {
				pids = regexp.MustCompile(`(child|daemon) (\d+)\n`).FindAllStringSubmatch(string(s.Out.Contents()), -1)
				return pids
			}).WithTimeout(time.Minute).Should(HaveLen(2))
			helpers := descendants(s.Command.Process.Pid)
			Expect(helpers).NotTo(BeEmpty())
			end(s)
			Eventually(s).WithTimeout(30 * time.Second).Should(gexec.Exit())
			for _, match := range pids {
				pid, _ := strconv.Atoi(match[2])
				helpers = append(helpers, pid)
			}
			for _, pid := range helpers {
				Eventually(lab.Runs).WithArguments(pid).WithTimeout(30*time.Second).Should(BeFalse(), "process %d", pid)
			}
			Expect(lab.State(l.Node)).To(Equal(before))
			Expect(filesOfNobody()).To(Equal(files))
		},
		Entry("after the command exits", func(s *gexec.Session) { s.Signal(syscall.SIGINT) }),
		Entry("after kill -9 of usher", func(s *gexec.Session) { s.Kill() }),
	)

	It("runs a command within 20 s with 1,000 Services", func() {
		plain, err := releasedKubectlUsher()
		Expect(err).NotTo(HaveOccurred())
		Expect(os.Remove(program)).To(Succeed())
		Expect(exec.Command("cp", plain, program).Run()).To(Succeed())
		var all strings.Builder
		for n := range 1000 {
			fmt.Fprintln(&all, "---")
			all.WriteString(service{name: fmt.Sprintf("many-%d", n), clusterIP: fmt.Sprintf("10.97.%d.%d", n/250, n%250+1), port: 80,
				endpoints: []netip.AddrPort{netip.AddrPortFrom(lab.Pod(1), 8080)}}.yaml())
		}
		writeFile(filepath.Join(manifests, "many.yaml"), all.String())
		var took []time.Duration
		for range 3 {
			started := time.Now()
			Expect(output("curl -fsS http://many-999/")).To(Equal("Pod 1\n"))
			took = append(took, time.Since(started))
		}
		AddReportEntry("usher exec with 1,000 Services, to the command's end", fmt.Sprint(took))
		Expect(slices.Min(took)).To(BeNumerically("<", 20*time.Second)) // 1 s on an idle machine
	})

	DescribeTable("reaches Services but no other networks, and warns once with cause and fix, if",
		func(mode os.FileMode, why string) {
			node = l.Node.WithTun(mode)
			serveText(l.Outside, "192.0.2.2:8000", "elsewhere\n")
			s := start(command("--", "sh", "-c", "curl -fsS http://web/; curl -fs http://192.0.2.2:8000/"))
			Eventually(s).WithTimeout(30 * time.Second).Should(gexec.Exit(7)) // curl's exit code for a failed connection
			Expect(string(s.Out.Contents())).To(MatchRegexp(`^Pod [123]\n$`))
			lines := strings.Split(strings.TrimSpace(string(s.Err.Contents())), "\n")
			Expect(lines).To(ConsistOf(And(HavePrefix("usher: warning: the command can reach Services and localhost, but no other networks"), ContainSubstring(why))))
		},
		Entry("only root can open /dev/net/tun", os.FileMode(0o600), "/dev/net/tun: permission denied; `sudo chmod 0666 /dev/net/tun` gives all users access"),
		Entry("/dev/net/tun does not exist", os.FileMode(0), "/dev/net/tun: no such file or directory; `sudo mkdir -p /dev/net && sudo mknod -m 0666 /dev/net/tun c 10 200` creates it"),
	)

	It("reports that user namespaces are disabled, and suggests an alternative", func() {
		missing("unshare")
		missing("setpriv")
		script := `echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all "$0" "$@"`
		cmd := command("true")
		cmd.Args = append([]string{"unshare", "-Ur", "sh", "-c", script}, cmd.Args...)
		cmd.Path, _ = exec.LookPath("unshare")
		s := start(cmd)
		Eventually(s).WithTimeout(time.Minute).Should(gexec.Exit(1))
		Expect(string(s.Err.Contents())).To(And(ContainSubstring("user.max_user_namespaces is 0"), ContainSubstring("kubectl usher connect")))
	})
})

// openDir returns a folder that every user may enter and write to. It is removed
// when the test ends.
func openDir() string {
	GinkgoHelper()
	dir, err := os.MkdirTemp("", "exec-test-")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(os.RemoveAll, dir)
	Expect(os.Chmod(dir, 0o777)).To(Succeed())
	return dir
}

// serveText answers every HTTP request at an address of ns with text.
func serveText(ns *lab.Namespace, address, text string) {
	GinkgoHelper()
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })}
	listener := ns.Listen(address)
	go func() { _ = server.Serve(listener) }()
	DeferCleanup(func() { _ = server.Shutdown(context.Background()) })
}

// startUDPEcho starts a UDP echo server at an address of ns.
func startUDPEcho(ns *lab.Namespace, at netip.AddrPort) netip.AddrPort {
	GinkgoHelper()
	lab.Echo(ns.ListenUDP(at.String()))
	return at
}

// ptySession is a command in a terminal.
type ptySession struct {
	file  *os.File
	seen  *gbytes.Buffer
	ended chan int // its exit code
}

// foreground returns the terminal's foreground process group.
func (p *ptySession) foreground() (group int, err error) {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	if controlErr := raw.Control(func(fd uintptr) { group, err = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP) }); controlErr != nil {
		return 0, controlErr
	}
	return group, err
}

func startPTY(ns *lab.Namespace, cmd *exec.Cmd) *ptySession {
	GinkgoHelper()
	p := &ptySession{seen: gbytes.NewBuffer(), ended: make(chan int, 1)}
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
	ns.Do(func() error {
		file, tty, err := pty.Open()
		if err != nil {
			return err
		}
		defer tty.Close()
		p.file = file
		if err := tty.Chown(nobody, nobody); err != nil {
			return err
		}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
		return cmd.Start()
	})
	go func() { _, _ = io.Copy(io.MultiWriter(p.seen, GinkgoWriter), p.file) }()
	go func() {
		_ = cmd.Wait()
		p.ended <- cmd.ProcessState.ExitCode()
	}()
	DeferCleanup(func() {
		_ = cmd.Process.Kill()
		p.file.Close()
	})
	return p
}

func (p *ptySession) enter(text string) {
	GinkgoHelper()
	_, err := io.WriteString(p.file, text)
	Expect(err).NotTo(HaveOccurred())
}

// descendants returns the children of pid, their children, and so on.
func descendants(pid int) (all []int) {
	text, _ := exec.Command("pgrep", "-P", strconv.Itoa(pid)).Output()
	for field := range strings.FieldsSeq(string(text)) {
		child, _ := strconv.Atoi(field)
		all = append(append(all, child), descendants(child)...)
	}
	return all
}
