package test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/creack/pty"
	"github.com/hinshun/vt10x"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/test/lab"
)

// terminal is a pseudo-terminal in which a program runs, and its screen as a user sees it.
type terminal struct {
	cmd    *exec.Cmd
	pty    *os.File
	vt     vt10x.Terminal
	before unix.Termios  // settings before the program starts
	after  unix.Termios  // settings after it exits
	done   chan struct{} // closed when the program has ended and all output is drawn

	mu  sync.Mutex
	raw strings.Builder // all output
}

// startTerminal runs usher, or kubectl-usher for top, in ns, in a terminal of this size. env extends the environment.
func startTerminal(ns *lab.Namespace, width, height int, env []string, args ...string) *terminal {
	GinkgoHelper()
	program := usherBinary
	if args[0] == "top" {
		program, args = kubectlUsher(), append(args, "--local")
	}
	t := &terminal{cmd: exec.Command(program, args...), vt: vt10x.New(vt10x.WithSize(width, height)), done: make(chan struct{})}
	t.cmd.Env = append(append(os.Environ(), "TERM=xterm-256color", "COLORTERM="), env...)
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	var tty *os.File
	ns.Do(func() (err error) {
		if t.pty, tty, err = pty.Open(); err != nil {
			return err
		}
		t.resize(width, height)
		t.before = settings(tty)
		t.cmd.Stdin, t.cmd.Stdout, t.cmd.Stderr = tty, tty, tty
		return t.cmd.Start()
	})
	drawn := make(chan struct{})
	go func() {
		t.draw()
		close(drawn)
	}()
	go func() {
		_ = t.cmd.Wait() // the caller checks its ProcessState
		t.after = settings(tty)
		tty.Close() // ends draw
		<-drawn
		close(t.done)
	}()
	DeferCleanup(func() {
		_ = t.cmd.Process.Kill() // it may have exited
		<-t.done
		t.pty.Close()
	})
	return t
}

// settings returns the settings of a terminal.
func settings(tty *os.File) unix.Termios {
	modes, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		return unix.Termios{}
	}
	return *modes
}

func (t *terminal) resize(width, height int) {
	GinkgoHelper()
	t.vt.Resize(width, height)
	Expect(pty.Setsize(t.pty, &pty.Winsize{Cols: uint16(width), Rows: uint16(height)})).To(Succeed())
}

// draw draws the program's output until the program exits.
func (t *terminal) draw() {
	buf := make([]byte, 4096)
	for {
		n, err := t.pty.Read(buf)
		t.mu.Lock()
		t.raw.Write(buf[:n])
		t.mu.Unlock()
		_, _ = t.vt.Write(buf[:n]) // cannot fail
		if err != nil {            // EIO: the program has exited
			return
		}
	}
}

// screen returns the current contents of the screen.
func (t *terminal) screen() string { return t.vt.String() }

// written returns all output, unprocessed.
func (t *terminal) written() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.raw.String()
}

func (t *terminal) press(keys string) {
	GinkgoHelper()
	_, err := t.pty.WriteString(keys)
	Expect(err).NotTo(HaveOccurred())
}

// shows waits until the screen matches pattern.
func (t *terminal) shows(pattern string) {
	GinkgoHelper()
	Eventually(t.screen).WithTimeout(15 * time.Second).Should(MatchRegexp(pattern))
}

// ends waits until the program exits, and checks its exit code.
func (t *terminal) ends(code int) {
	GinkgoHelper()
	Eventually(t.done).WithTimeout(15*time.Second).Should(BeClosed(), t.written)
	Expect(t.cmd.ProcessState.ExitCode()).To(Equal(code), t.written())
}

// askUsher runs an usher command in ns, and returns its output and exit code.
func askUsher(ns *lab.Namespace, args ...string) (out, err string, code int) {
	GinkgoHelper()
	cmd := exec.Command(usherBinary, args...)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0") // skips the race detector's 1 s sleep after each command
	s := launch(ns, cmd, "")
	Eventually(s).WithTimeout(time.Minute).Should(gexec.Exit())
	return string(s.Out.Contents()), string(s.Err.Contents()), s.ExitCode()
}

var _ = Describe("commands that query a running instance", Ordered, func() {
	var l *lab.Lab
	var dialer *lab.Dialer // for clients in Pods
	web := service{name: "web", clusterIP: "10.96.0.10", port: 80}
	empty := service{name: "empty", clusterIP: "10.96.0.11", port: 80}

	BeforeAll(func() {
		l = lab.New()
		good := startBackend(l.Pods, lab.Pod(1), 8080)
		refuses := netip.AddrPortFrom(lab.Pod(2), 8080) // nothing listens here
		web.endpoints = append(web.endpoints, good.addr, refuses)
		web.spec = "  sessionAffinity: ClientIP\n"
		dir := manifestsDir()
		web.write(dir)
		empty.write(dir)
		startUsher(l.Node, dir, "--portal=address", "--quarantine=10m", "--quarantine-max=10m")
		dialer = l.Pods.NewDialer(1)
		// Within a few connections a client reaches the endpoint that refuses: the rotation includes each endpoint.
		for n := range 4 {
			_, err := askFrom(dialer, lab.Pod(10+n).String(), web.vip())
			Expect(err).NotTo(HaveOccurred())
		}
	})

	Describe("usher get", func() {
		It("lists Services as kubectl does", func() {
			Eventually(func() string { // until the connections have ended
				out, _, code := askUsher(l.Node, "get", "services")
				Expect(code).To(BeZero())
				Expect(out).To(MatchRegexp(`(?m)^NAME +STATE +SINCE +VIP +PORTS +ENDPOINTS`))
				Expect(out).To(MatchRegexp(`(?m)^empty +no-endpoints `))
				return out
			}).WithTimeout(time.Minute).Should(MatchRegexp(`(?m)^web +degraded +[0-9:]+ +10\.96\.0\.10 +80/TCP +1/2 +0 +4 +1 +0$`))
			out, _, _ := askUsher(l.Node, "get", "svc", "-A", "web")
			Expect(out).To(MatchRegexp(`(?m)^default +web `))
			Expect(out).NotTo(ContainSubstring("empty"))
		})

		It("prints names for scripts, and several kinds at once", func() {
			out, _, code := askUsher(l.Node, "get", "all", "web", "-o", "name")
			Expect(code).To(BeZero())
			Expect(strings.Fields(out)).To(ConsistOf("service/web", "endpoint/10.244.0.11:8080", "endpoint/10.244.0.12:8080"))
			for _, kind := range []string{"services", "endpoints", "connections"} { // kind and name can be typed back, with or without the namespace
				for _, args := range [][]string{{kind, "-o", "name"}, {kind, "-o", "name", "-A"}} {
					if kind == "connections" {
						args = append(args, "--state=all")
					}
					out, _, _ := askUsher(l.Node, append([]string{"get"}, args...)...)
					Expect(out).NotTo(BeEmpty())
					_, err, code := askUsher(l.Node, append([]string{"get"}, strings.Fields(out)...)...)
					Expect(code).To(BeZero(), "%s: %s", out, err)
				}
			}
			out, _, _ = askUsher(l.Node, "get", "endpoint/10.244.0.12:8080", "endpoint/10.244.0.11:8080", "-o", "name")
			Expect(strings.Fields(out)).To(ConsistOf("endpoint/10.244.0.11:8080", "endpoint/10.244.0.12:8080"))
			_, err, code := askUsher(l.Node, "get", "endpoint/10.244.0.99:8080")
			Expect(code).To(Equal(1))
			Expect(err).To(ContainSubstring("there is no endpoint 10.244.0.99:8080"))
			out, _, _ = askUsher(l.Node, "get", "all")
			Expect(out).To(MatchRegexp(`(?s)^NAME +STATE .*\n\nSERVICE +PORT +ENDPOINT .*`))
		})

		It("watches for changes with -w", func() {
			s := launch(l.Node, exec.Command(usherBinary, "get", "connections", "-w"), "")
			endpoints := launch(l.Node, exec.Command(usherBinary, "get", "endpoints", "-w"), "")
			Eventually(endpoints.Out).WithTimeout(30 * time.Second).Should(gbytes.Say(`(?s)SERVICE .*\nweb .*10\.244\.0\.12:8080 .*quarantined`))
			Eventually(func() string { // connections that ended before the watch began are not shown
				_, err := askFrom(dialer, lab.Pod(10).String(), web.vip())
				Expect(err).NotTo(HaveOccurred())
				return string(s.Out.Contents())
			}).WithTimeout(time.Minute).WithPolling(time.Second).Should(MatchRegexp(`(?s)ID .*\n *\d+ +web:main .* (client|endpoint)-closed `))
			for _, w := range []*gexec.Session{s.Session, endpoints.Session} {
				w.Interrupt()
				Eventually(w).WithTimeout(30 * time.Second).Should(gexec.Exit())
			}
			Expect(strings.Count(string(endpoints.Out.Contents()), "web ")).To(Equal(2), "endpoints with unchanged state are not printed again")
		})

		It("prints JSON and YAML for programs", func() {
			out, _, code := askUsher(l.Node, "get", "connections", "web", "--state=all", "--retried", "-o", "json")
			Expect(code).To(BeZero())
			var list api.ConnectionList
			Expect(json.Unmarshal([]byte(out), &list)).To(Succeed())
			Expect(list.Items).To(HaveLen(1))
			Expect(list.Items[0].Attempts).To(HaveLen(2))
			out, _, _ = askUsher(l.Node, "get", "svc", "empty", "-o", "yaml")
			Expect(out).To(ContainSubstring("state: no-endpoints\n"))
		})

		It("prints quarantined endpoints, affinities and portal rules", func() {
			out, _, _ := askUsher(l.Node, "get", "endpoints", "web")
			Expect(out).To(MatchRegexp(`(?m)^web +main +10\.244\.0\.12:8080 +- +quarantined .* probe in \dm\d+s: connection refused$`))
			out, _, _ = askUsher(l.Node, "get", "affinity", "--client", "10.244.0.20")
			Expect(out).To(MatchRegexp(`(?m)^web:main +10\.244\.0\.20 +10\.244\.0\.11:8080 +- +(3h|2h5\dm)$`))
			out, _, _ = askUsher(l.Node, "get", "portals", "-A")
			Expect(out).To(MatchRegexp(`(?m)^ok +address +10\.96\.0\.10`))
		})

		It("prints all attempts of one connection", func() {
			out, _, _ := askUsher(l.Node, "get", "conn", "-A", "--state=all", "--retried", "-o", "json")
			var list api.ConnectionList
			Expect(json.Unmarshal([]byte(out), &list)).To(Succeed())
			out, _, code := askUsher(l.Node, "get", "connection", fmt.Sprint(list.Items[0].ID))
			Expect(code).To(BeZero())
			Expect(out).To(MatchRegexp(`(?s)1 10\.244\.0\.12:8080 \(round robin\)\n +█+ *connection refused after .*2 10\.244\.0\.11:8080 .*connected in`))
		})

		It("reports errors with suggestions and an exit code", func() {
			_, err, code := askUsher(l.Node, "get", "services", "wbe")
			Expect(code).To(Equal(1))
			Expect(err).To(ContainSubstring("no Service default/wbe is served; did you mean web?"))
			for _, args := range [][]string{{"get", "connections", "web", "-n", "shop"}, {"trace", "shop/web"}, {"diagnose", "shop/web"}, {"explain", "web", "-n", "shop"}} {
				_, err, code = askUsher(l.Node, args...)
				Expect(code).To(Equal(1), "%v", args)
				Expect(err).To(ContainSubstring("no Service shop/web is served; there is default/web"))
			}
			_, err, _ = askUsher(l.Node, "get", "services", "mail")
			Expect(err).To(HaveSuffix("no Service default/mail is served; use -A to search all namespaces\n"))
			_, err, _ = askUsher(l.Node, "trace", "mail") // trace has no -A
			Expect(err).To(HaveSuffix("no Service default/mail is served; 'usher get services -A' lists all Services\n"))
			_, err, code = askUsher(l.Node, "get", "pods")
			Expect(code).To(Equal(2))
			Expect(err).To(ContainSubstring(`unknown kind "pods"`))
			_, err, code = askUsher(l.Pods, "get", "services") // no usher runs there
			Expect(code).To(Equal(1))
			Expect(err).To(ContainSubstring("cannot connect to usher at 127.0.0.1:10249: connection refused\nStart it with 'usher run', or try it with 'usher demo'"))
			_, err, code = askUsher(l.Node, "demo", "repair", "--all")
			Expect(code).To(Equal(1))
			Expect(err).To(ContainSubstring("this usher is not a demo"))
			for _, kind := range []string{"services", "endpoints", "connections", "all"} {
				_, err, code = askUsher(l.Node, "get", kind, "-n", "defualt")
				Expect(code).To(Equal(1), kind)
				Expect(err).To(HaveSuffix("there is no Service in namespace defualt that usher serves; did you mean default?\n"), kind)
			}
			_, err, code = askUsher(l.Node, "get", "services", "-n", "shop")
			Expect(code).To(Equal(1))
			Expect(err).To(HaveSuffix("there is no Service in namespace shop that usher serves; use -A to list all namespaces\n"))

			By("reporting unknown Services and invalid flag values")
			for _, wrong := range []struct {
				args []string
				says string
			}{
				{[]string{"get", "connections", "wbe"}, "no Service default/wbe is served"},
				{[]string{"get", "connections", "web", "wbe"}, "no Service default/wbe is served"},
				{[]string{"get", "affinity", "wbe"}, "no Service default/wbe is served"},
				{[]string{"get", "portals", "wbe"}, "no Service default/wbe is served"},
				{[]string{"get", "services", "--state", "bad"}, `--state: invalid value "bad": must be one of ok,`},
				{[]string{"get", "endpoints", "10.244.0.99:80", "--state", "ready"}, "there is no endpoint 10.244.0.99:80 of a Service that usher serves"},
				{[]string{"get", "endpoints", "--state", "bad"}, `--state: invalid value "bad": must be one of ready,`},
				{[]string{"get", "services", "--sort", "size"}, `--sort: invalid value "size": must be one of name,`},
				{[]string{"get", "connections", "--outcome", "bad"}, `--outcome: invalid value "bad": must be one of ok, retried, slow, failed, no-response`},
				{[]string{"get", "connections", "--end", "reset"}, `--end: invalid value "reset": must be one of client-closed,`},
				{[]string{"trace", "--end", "reset"}, `--end: invalid value "reset": must be one of client-closed,`},
			} {
				_, err, code := askUsher(l.Node, wrong.args...)
				Expect(code).NotTo(BeZero(), "%v", wrong.args)
				Expect(err).To(ContainSubstring(wrong.says), "%v", wrong.args)
			}
		})
	})

	Describe("usher explain", func() {
		It("prints the endpoints that would be tried, in order, with reasons", func() {
			out, _, code := askUsher(l.Node, "explain", "web", "--client", "10.244.0.20")
			Expect(code).To(BeZero())
			Expect(out).To(MatchRegexp(`(?m)^  1  10\.244\.0\.11:8080 +affinity +session affinity: the client had it before`))
			Expect(out).To(MatchRegexp(`(?m)^  2  10\.244\.0\.12:8080 +only one left +.*in quarantine until a probe succeeds, next in \d+m`))
			_, errs, code := askUsher(l.Node, "explain", "web:main")
			Expect(code).To(BeZero(), errs)
			_, errs, _ = askUsher(l.Node, "trace", "web:main")
			Expect(errs).To(ContainSubstring("no Service default/web:main is served; did you mean web?"))
			out, _, _ = askUsher(l.Node, "explain", "empty")
			Expect(out).To(ContainSubstring("No usable endpoint"))
		})
	})

	Describe("usher trace", func() {
		It("prints recorded events and exits with --follow=false", func() {
			out, _, code := askUsher(l.Node, "trace", "web", "--follow=false", "--outcome=retry")
			Expect(code).To(BeZero())
			Expect(out).To(MatchRegexp(`attempt 1 → 10\.244\.0\.12:8080 .*: connection refused after`))
			Expect(out).NotTo(ContainSubstring("\x1b"), "no colors in a pipe")
		})

		It("prints only changes with --changes", func() {
			out, _, code := askUsher(l.Node, "trace", "web", "--changes", "--follow=false")
			Expect(code).To(BeZero())
			Expect(out).To(MatchRegexp(`10\.244\.0\.12:8080 .*quarantine`))
			Expect(out).NotTo(Or(ContainSubstring("attempt"), ContainSubstring("accepted")))
		})

		It("follows events in color until Ctrl-C", func() {
			t := startTerminal(l.Node, 120, 30, nil, "trace", "web", "--client=10.244.0.33", "--history")
			Eventually(func() string {
				_, err := askFrom(dialer, "10.244.0.33", web.vip())
				Expect(err).NotTo(HaveOccurred())
				return t.written()
			}).WithTimeout(10 * time.Second).Should(ContainSubstring("\x1b[32m#"))
			t.shows(`accepted 10\.244\.0\.33:\d+ → 10\.96\.0\.10:80`)
			Expect(ansi.Strip(t.written())).NotTo(ContainSubstring("10.244.0.20"), "the filter applies")
			t.press("\x03")
			Eventually(t.done).WithTimeout(30 * time.Second).Should(BeClosed())
			Expect(t.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal()).To(Equal(syscall.SIGINT))
		})

		It("prints no colors if NO_COLOR is set", func() {
			t := startTerminal(l.Node, 120, 30, []string{"NO_COLOR=1"}, "trace", "--follow=false")
			t.ends(0)
			Expect(t.written()).To(ContainSubstring("connection refused after"))
			Expect(t.written()).NotTo(MatchRegexp(`\x1b\[3\dm`))
		})
	})

	Describe("kubectl usher top", func() {
		It("shows and sorts Services, opens a connection's waterfall, and restores the terminal", func() {
			t := startTerminal(l.Node, 110, 24, nil, "top", "--interval=200ms")
			t.shows(`> default/empty +no-endpoints`)
			t.shows(`default/web +degraded .*1/2`)
			t.shows(`Services, by name`)

			By("sorting by retries")
			t.press("sss")
			t.shows(`Services, the most retries first`)
			t.shows(`> default/web `)

			By("opening the Service and the connection that was retried")
			t.press("\r")
			t.shows(`Connections of default/web, the newest first`)
			t.shows(`> +\d+ +client-closed`)
			t.press("s")
			t.shows(`the most attempts first`)
			t.shows(`> +\d+ +client-closed +2 `)
			t.press("\r")
			t.shows(`Connection #\d+`)
			t.shows(`(?s)1 10\.244\.0\.12:8080 \(round robin\).*connection refused after.*2 10\.244\.0\.11:8080 .*connected in`)

			By("making the terminal smaller")
			t.resize(60, 12)
			t.press("\x1b")
			t.shows(`Connections of default/web`)

			By("quitting")
			t.press("q")
			t.ends(0)
			Expect(t.written()).To(ContainSubstring("\x1b[?1049h"), "the alternate screen")
			Expect(t.written()).To(MatchRegexp(`(?s)\x1b\[\?1049l.*$`), "back to the main screen")
			Expect(t.vt.Mode() & vt10x.ModeAltScreen).To(BeZero())
			Expect(t.vt.CursorVisible()).To(BeTrue())
			Expect(t.after).To(Equal(t.before))
		})

		It("filters Services, and reports if none matches", func() {
			t := startTerminal(l.Node, 90, 20, []string{"NO_COLOR=1"}, "top", "--interval=200ms")
			t.shows(`(?m)^>? +default/web`)
			t.press("/emp")
			t.shows(`Services, with “emp▏”`)
			Eventually(t.screen).Should(Not(MatchRegexp(`(?m)^>? +default/web`)), "the header still names it")
			t.press("x")
			t.shows(`Nothing matches the filter`)
			t.press("\x1b")
			t.shows(`(?m)^>? +default/web`)
			t.press("\x03")
			t.ends(0)
			Expect(t.written()).NotTo(MatchRegexp(`\x1b\[[0-9;]*3[1-7]m`), "no colors")
		})

		It("requires a terminal", func() {
			s := launch(l.Node, exec.Command(kubectlUsher(), "top", "--local"), "")
			Eventually(s).WithTimeout(time.Minute).Should(gexec.Exit(1))
			Expect(string(s.Err.Contents())).To(ContainSubstring("top requires a terminal; 'kubectl usher get services' prints similar data once"))
		})

		It("prints an error on the main screen if usher does not run", func() {
			t := startTerminal(l.Pods, 80, 24, nil, "top")
			t.ends(1)
			Expect(t.written()).To(ContainSubstring("cannot connect to usher at 127.0.0.1:10249"))
			Expect(t.written()).NotTo(ContainSubstring("\x1b[?1049h"))
		})
	})
})

var _ = Describe("usher demo", func() {
	It("breaks and repairs its servers on request", func() {
		l := lab.New()
		d := launch(l.Node, exec.Command(usherBinary, "demo", "--portal=address", "--quarantine=100ms"), "")
		Eventually(d.Out).WithTimeout(time.Minute).Should(gbytes.Say(`Open http://127\.0\.0\.1:10249/`))
		dialer := l.Node.NewDialer(1)
		curl := func(vip string) string {
			conn, err := dialer.Dial("", vip+":80", 10*time.Second)
			if err != nil {
				return err.Error()
			}
			defer conn.Close()
			Expect(conn.SetDeadline(time.Now().Add(10 * time.Second))).To(Succeed())
			fmt.Fprintf(conn, "GET / HTTP/1.0\r\n\r\n")
			buf := make([]byte, 4096)
			var text strings.Builder
			for {
				n, err := conn.Read(buf)
				text.Write(buf[:n])
				if err != nil {
					return text.String() + " " + err.Error()
				}
			}
		}
		change := func(says string, args ...string) {
			GinkgoHelper()
			out, err, code := askUsher(l.Node, append([]string{"demo"}, args...)...)
			Expect(code).To(BeZero(), err)
			Expect(out).To(ContainSubstring(says))
		}
		const web = "10.96.0.10"
		Expect(curl(web)).To(ContainSubstring("I am web-"))

		By("refusing, and never answering")
		change("default/web-1", "break", "web-1", "refuse")
		change("now never answers", "break", "default/web-2", "blackhole")
		for range 3 {
			Expect(curl(web)).To(ContainSubstring("I am web-3"))
		}
		Eventually(d.Out).Should(gbytes.Say(`web-1 .*: connection refused after`))
		Eventually(d.Out).Should(gbytes.Say(`web-3 .*: connected in`))
		Expect(string(d.Out.Contents())).To(MatchRegexp(`web-2 .*: no answer after`))

		By("resetting, which attempts cannot detect")
		change("now accepts, and resets at once", "break", "web-3", "reset")
		// Only one of a client's two calls, write and read, reports the reset.
		Expect(curl(web)).To(Or(ContainSubstring("reset by peer"), HaveSuffix("EOF")))
		Eventually(func() *gbytes.Buffer { curl(web); return d.Out }).WithTimeout(time.Minute).Should(gbytes.Say(`endpoint-reset`))
		// Some resets arrive before the connection is established. They count as failed attempts and quarantine the
		// endpoint until a probe, which cannot detect the fault either.
		Eventually(func() string {
			curl(web)
			out, _, _ := askUsher(l.Node, "get", "endpoints", "web")
			return out
		}).WithTimeout(time.Minute).Should(MatchRegexp(`web-3 +outlier +[0-9:]+ +0 +\d+ +(?:[4-9]|\d\d)`))
		out, _, _ := askUsher(l.Node, "get", "services", "web")
		Expect(out).To(MatchRegexp(`web +degraded +[0-9:]+ +10.* 0/3 .* (?:[4-9]|\d\d+)\n`), "connections have failed")

		By("answering slowly")
		change("now answers after 2s", "break", "web-3", "slow")
		began := time.Now()
		Expect(curl(web)).To(ContainSubstring("I am web-3"))
		Expect(time.Since(began)).To(BeNumerically(">=", 2*time.Second))

		By("repairing")
		change("default/web-2", "repair", "--all")
		answered := func() string { return curl(web) }
		for _, name := range []string{"web-1", "web-2", "web-3"} {
			Eventually(answered).WithTimeout(30 * time.Second).Should(ContainSubstring("I am " + name))
		}

		By("rejecting requests of other sites' pages")
		post := func(headers ...string) string {
			GinkgoHelper()
			conn, err := dialer.Dial("", "127.0.0.1:10249", 10*time.Second)
			Expect(err).NotTo(HaveOccurred())
			defer conn.Close()
			const body = `{"all":true}`
			fmt.Fprintf(conn, "POST /demo/repair HTTP/1.0\r\nContent-Length: %d\r\n%s\r\n\r\n%s", len(body), strings.Join(headers, "\r\n"), body)
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			Expect(err).NotTo(HaveOccurred())
			defer answer.Body.Close()
			return answer.Status
		}
		Expect(post("Host: 127.0.0.1:10249", "X-Usher-Demo: 1")).To(HavePrefix("200"))
		Expect(post("Host: 127.0.0.1:10249")).To(HavePrefix("403"), "a plain form")
		Expect(post("Host: 127.0.0.1:10249", "X-Usher-Demo: 1", "Origin: http://evil.example")).To(HavePrefix("403"))
		Expect(post("Host: evil.example", "X-Usher-Demo: 1")).To(HavePrefix("421"), "a host name that resolves to this address")

		By("reporting invalid requests")
		_, err, code := askUsher(l.Node, "demo", "break", "echo-1", "reset")
		Expect(code).To(Equal(1))
		Expect(err).To(ContainSubstring(`invalid value "reset": must be one of refuse, blackhole, slow, delay=300ms, flaky=10% for echo-1, a UDP server`))
		_, err, code = askUsher(l.Node, "demo", "break", "web-9", "slow")
		Expect(code).To(Equal(1))
		Expect(err).To(ContainSubstring(`unknown endpoint "web-9": must be one of web-1, web-2, web-3,`))
		_, err, code = askUsher(l.Node, "demo", "break", "web-1", "flaky=200%")
		Expect(code).To(Equal(1))
		Expect(err).To(ContainSubstring(`flaky: invalid value "200%": must be a share from 0.1% to 100%, such as 10%`))
		_, err, code = askUsher(l.Node, "demo", "repair")
		Expect(code).To(Equal(2))
		Expect(err).To(ContainSubstring("repair takes one ENDPOINT or --all"))

		By("playing a scenario with a met and an unmet expectation")
		scenario := filepath.Join(manifestsDir(), "scenario.yaml")
		writeFile(scenario, "title: x\nsteps:\n- {at: 0s, break: web-1 delay=1ms}\n- {at: 0s, load: web 20/s}\n"+
			"- {at: 0s, expect: web answered >= 5, by: 10s}\n- {at: 10s, expect: web ready = 9}\n")
		started := time.Now()
		play := launch(l.Node, exec.Command(usherBinary, "demo", "play", scenario), "")
		Eventually(play.Out).WithTimeout(time.Minute).Should(gbytes.Say(`as expected: web answered >= 5 \(\d+\)`))
		Eventually(play).WithTimeout(40 * time.Second).Should(gexec.Exit(1))
		Expect(time.Since(started)).To(BeNumerically(">=", 10*time.Second))
		Expect(play.Out).To(gbytes.Say(`NOT AS EXPECTED: web ready = 9 \(3\)`))
		Expect(play.Out).To(gbytes.Say(`1 of 2 expectations met`))
		d.Interrupt()
		Eventually(d).WithTimeout(time.Minute).Should(gexec.Exit(0))
		_, err, code = askUsher(l.Node, "demo", "play", scenario)
		Expect(code).To(Equal(1))
		Expect(err).To(ContainSubstring("try it with 'usher demo'"))
	})
})
