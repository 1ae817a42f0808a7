package test

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/test/lab"
)

// kept is a keeper, which is the process of the session, and its usher process.
type kept struct {
	*usher
	last int // the usher process that child returned last
}

// startKept starts a keeper, and waits until its usher process serves.
func startKept(ns *lab.Namespace, manifests string, args ...string) *kept {
	GinkgoHelper()
	k := &kept{usher: launchUsher(ns, manifests, append([]string{"--keeper"}, args...)...)}
	DeferCleanup(func() { // before the session waits for all processes that have its output
		pids := lab.Children(k.Command.Process.Pid)
		if k.last != 0 && lab.Runs(k.last) {
			pids = append(pids, k.last)
		}
		k.Kill() // first: it would restart usher
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	})
	Eventually(k.Err).WithTimeout(time.Minute).Should(gbytes.Say("Serving"))
	return k
}

// child waits until the keeper has one usher process, and returns it.
func (k *kept) child() int {
	GinkgoHelper()
	k.last = lab.Child(k.Command.Process.Pid)
	return k.last
}

// crash kills the usher process, and waits until the next one serves.
func (k *kept) crash() {
	GinkgoHelper()
	Expect(syscall.Kill(k.child(), syscall.SIGKILL)).To(Succeed())
	Eventually(k.Err).WithTimeout(time.Minute).Should(gbytes.Say("usher exited unexpectedly"))
	Eventually(k.Err).WithTimeout(time.Minute).Should(gbytes.Say("Serving"))
}

// callers open new connections to Services at a steady rate. They count those that could not
// be opened (unmade) separately from those that were lost afterwards.
type callers struct {
	made, lost, unmade atomic.Int64
	firstUnmade        atomic.Pointer[error]
	longest            atomic.Int64 // nanoseconds until the endpoint's first byte
	stop               func()       // also waits for open connections
}

// call opens about perSecond connections a second, to the VIPs in rotation.
func call(d *lab.Dialer, perSecond int, vips ...string) *callers {
	c := &callers{}
	const workers = 40
	c.stop = startWorkers(workers, func(w int, stop <-chan struct{}) {
		ticker := time.NewTicker(time.Duration(workers) * time.Second / time.Duration(perSecond))
		defer ticker.Stop()
		for n := w; tick(ticker, stop); n++ {
			c.callOnce(d, vips[n%len(vips)])
		}
	})
	return c
}

func (c *callers) callOnce(d *lab.Dialer, vip string) {
	began := time.Now()
	conn, err := d.Dial("", vip, 20*time.Second)
	if errors.Is(err, syscall.ECONNRESET) { // accepted, and reset before connect(2) returned
		c.lost.Add(1)
		return
	}
	if err != nil {
		c.unmade.Add(1)
		err = fmt.Errorf("%s after %s: %w", vip, time.Since(began), err)
		c.firstUnmade.CompareAndSwap(nil, &err)
		return
	}
	defer conn.Close()
	c.made.Add(1)
	if _, err := readNameWithin(conn, time.Minute); err != nil { // a restart may take this long
		c.lost.Add(1) // the killed usher process had accepted it
		return
	}
	for took := int64(time.Since(began)); ; {
		longest := c.longest.Load()
		if took <= longest || c.longest.CompareAndSwap(longest, took) {
			break
		}
	}
	if pingPong(conn) != nil {
		c.lost.Add(1)
	}
}

// end stops the callers, and expects that every connection could be opened.
func (c *callers) end() {
	GinkgoHelper()
	Eventually(c.made.Load).WithTimeout(time.Minute).Should(BeNumerically(">", 500))
	c.stop()
	AddReportEntry("connections", fmt.Sprintf("%d made, %d not, %d lost with their usher; longest wait %s",
		c.made.Load(), c.unmade.Load(), c.lost.Load(), time.Duration(c.longest.Load())))
	if err := c.firstUnmade.Load(); err != nil {
		Expect(*err).NotTo(HaveOccurred())
	}
}

var _ = Describe("with a keeper,", serial, func() {
	for _, portal := range []string{"iptables", "nftables", "address"} {
		Describe("the "+portal+" portal", func() { keeperSpecs(portal) })
	}
})

func keeperSpecs(portal string) {
	var (
		l    *lab.Lab
		pod  *lab.Dialer
		dir  string
		vips []string
	)
	BeforeEach(func() {
		if portal == "iptables" {
			missing("iptables")
		}
		l = lab.New()
		pod = l.Pods.NewDialer(50)
		dir = manifestsDir()
		vips = nil
		four, six := startBackend(l.Pods, lab.Pod(1), 8080), startBackend(l.Pods, lab.Pod6(1), 8080)
		for i := range 5 {
			for _, s := range []service{
				{name: fmt.Sprintf("four%d", i), clusterIP: fmt.Sprintf("10.96.0.%d", 10+i), port: 80, endpoints: []netip.AddrPort{four.addr}},
				{name: fmt.Sprintf("six%d", i), clusterIP: fmt.Sprintf("fd00:10:96::%d", 10+i), port: 80, endpoints: []netip.AddrPort{six.addr}},
			} {
				s.write(dir)
				vips = append(vips, s.vip())
			}
		}
	})

	It("refuses no client while usher is killed ten times, and answers each DNS query by the client's first retry", func() {
		dns := service{name: "dns", clusterIP: "10.96.0.53", port: 53, protocol: "UDP", endpoints: []netip.AddrPort{startEcho(l.Pods, lab.Pod(2))}}
		dns.write(dir)
		k := startKept(l.Node, dir, "--portal="+portal)
		traffic, resolvers := call(pod, 150, vips...), resolve(l.Pods.NewDialer(20), dns.vip())
		for range 10 {
			before, answered := traffic.made.Load(), resolvers.answered.Load()
			time.Sleep(1200 * time.Millisecond) // the keeper delays the restart of a process that serves for less than 1 s
			Eventually(traffic.made.Load).WithTimeout(time.Minute).Should(BeNumerically(">", before+100))
			Eventually(resolvers.answered.Load).WithTimeout(30 * time.Second).Should(BeNumerically(">", answered+100))
			resolvers.kills.Add(1)
			k.crash()
			resolvers.kills.Add(1)
		}
		before := traffic.made.Load()
		Eventually(traffic.made.Load).WithTimeout(time.Minute).Should(BeNumerically(">", before+300))
		traffic.end()
		resolvers.end()
		Expect(time.Duration(traffic.longest.Load())).To(BeNumerically("<", 30*time.Second)) // 0.5 s without the race detector and other load
		k.stop()
	})

	It("is handed over to another keeper's instance, and the first keeper exits", func() {
		first := startKept(l.Node, dir, "--portal="+portal)
		traffic := call(pod, 200, vips...)
		second := startKept(l.Node, dir, "--portal="+portal, "--take-over")
		Eventually(first).WithTimeout(40 * time.Second).Should(gexec.Exit(0))
		Expect(traffic.lost.Load()).To(BeZero())
		second.crash()
		before := traffic.made.Load()
		Eventually(traffic.made.Load).WithTimeout(time.Minute).Should(BeNumerically(">", before+500))
		traffic.end()
		second.stop()
	})
}

// queries are those of resolvers: an unanswered query is repeated once, and once more for each retry during which
// usher was killed or had not restarted.
type queries struct {
	answered, repeated atomic.Int64
	kills              atomic.Int64 // incremented before each kill, and when usher serves again
	first              atomic.Pointer[error]
	stop               func()
}

// retryTime is the time after which a resolver retries (resolv.conf(5)).
const retryTime = 5 * time.Second

func resolve(d *lab.Dialer, vip string) *queries {
	q := &queries{}
	q.stop = startWorkers(20, func(_ int, stop <-chan struct{}) {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
			if err := q.ask(d, vip); err != nil {
				q.first.CompareAndSwap(nil, &err)
			}
		}
	})
	return q
}

func (q *queries) ask(d *lab.Dialer, vip string) (err error) {
	c, err := d.DialUDP("", vip)
	if err != nil {
		return err
	}
	defer c.Close()
	for try, tries := 0, 2; try < tries; try++ {
		kills := q.kills.Load()
		if _, err = c.Write([]byte("who is there?")); err != nil {
			continue
		}
		if err = c.SetReadDeadline(time.Now().Add(retryTime)); err != nil {
			return err
		}
		if _, err = c.Read(make([]byte, 100)); err == nil {
			q.answered.Add(1)
			q.repeated.Add(int64(try))
			return nil
		}
		if now := q.kills.Load(); try > 0 && (now > kills || now%2 == 1) {
			tries++ // usher was killed again meanwhile, or has not restarted
		}
	}
	return fmt.Errorf("no answer to %s: %w", c.LocalAddr(), err)
}

func (q *queries) end() {
	GinkgoHelper()
	q.stop()
	AddReportEntry("queries", fmt.Sprintf("%d answered, %d of them after a retry", q.answered.Load(), q.repeated.Load()))
	if err := q.first.Load(); err != nil {
		Expect(*err).NotTo(HaveOccurred())
	}
}

var _ = Describe("a keeper", func() {
	var (
		l   *lab.Lab
		dir string
		web service
	)
	BeforeEach(func() {
		l = lab.New()
		dir = manifestsDir()
		web = service{name: "web", clusterIP: clusterIP, port: 80, endpoints: []netip.AddrPort{startBackend(l.Pods, lab.Pod(1), 8080).addr}}
		web.write(dir)
	})
	const health = "127.0.0.1:10256"
	livez := func() (string, error) { return get(l.Node.NewDialer(1), health, "/livez") }

	It("backs off while usher keeps crashing, reports the reason, and recovers", func() {
		k := startKept(l.Node, dir, "--portal=nftables", "--healthz-address="+health)
		Expect(livez()).To(And(ContainSubstring("200 OK"), Not(ContainSubstring("restarts"))))
		pauses := func() (all []string) {
			for _, found := range regexp.MustCompile(`usher exited unexpectedly.*pause=(\S+) .*reason="signal: killed"`).FindAllStringSubmatch(string(k.Err.Contents()), -1) {
				all = append(all, found[1])
			}
			return all
		}
		for !slices.Contains(pauses(), "3.2s") {
			count := len(pauses())
			Expect(syscall.Kill(k.child(), syscall.SIGKILL)).To(Succeed()) // all but the first before it serves
			Eventually(pauses).WithTimeout(time.Minute).Should(HaveLen(count + 1))
		}
		Expect(pauses()[0]).To(Equal("0s"))
		count := len(pauses())
		Expect(pauses()[count-6:]).To(Equal([]string{"100ms", "200ms", "400ms", "800ms", "1.6s", "3.2s"}))
		Eventually(livez).WithTimeout(30 * time.Second).Should(And(HavePrefix("HTTP/1.1 500"), ContainSubstring(fmt.Sprintf("usher exited unexpectedly %d times, last reason: signal: killed; restarting it at 20", count))))
		Eventually(k.Err).WithTimeout(time.Minute).Should(gbytes.Say("Serving"))
		Eventually(livez).WithTimeout(30 * time.Second).Should(And(ContainSubstring("200 OK"), ContainSubstring(fmt.Sprintf(`"restarts":{"count":%d,"last":"signal: killed","time":"`, count))))
		Expect(ask(l.Pods.NewDialer(1), web.vip())).To(Equal(web.endpoints[0]))
		k.stop()
	})

	// crashUntil kills the usher process until the keeper's pause before the next restart has this length.
	crashUntil := func(k *kept, pause string) {
		GinkgoHelper()
		ends := func() int { return strings.Count(string(k.Err.Contents()), "exited unexpectedly") }
		for !strings.Contains(string(k.Err.Contents()), "pause="+pause) {
			count := ends()
			Expect(syscall.Kill(k.child(), syscall.SIGKILL)).To(Succeed())
			Eventually(ends).WithTimeout(time.Minute).Should(BeNumerically(">", count))
		}
	}

	DescribeTable("removes all rules if it is stopped during a pause before a restart", func(sig os.Signal, upgrade bool, flags ...string) {
		before := lab.State(l.Node)
		k := startKept(l.Node, dir, append(flags, "--portal=nftables")...)
		if upgrade {
			Expect(syscall.Kill(k.Command.Process.Pid, syscall.SIGHUP)).To(Succeed())
			Eventually(k.Err).WithTimeout(time.Minute).Should(gbytes.Say("Another usher instance has taken over"))
		}
		crashUntil(k, "3.2s")
		Expect(lab.State(l.Node)).NotTo(Equal(before))
		k.Signal(sig)
		Eventually(k).WithTimeout(time.Minute).Should(gexec.Exit(0))
		Expect(lab.State(l.Node)).To(Equal(before))
	},
		Entry("with --remove-rules", syscall.SIGTERM, false, "--remove-rules"),
		Entry("with --remove-rules, after SIGHUP", syscall.SIGTERM, true, "--remove-rules"),
		Entry("by SIGINT", os.Interrupt, false),
	)

	It("can be taken over during a pause before a restart", func() {
		k := startKept(l.Node, dir, "--portal=nftables")
		crashUntil(k, "12.8s") // the rest must happen within this pause
		clean := launch(l.Node, exec.Command(usherBinary, "cleanup"), "")
		Eventually(clean).WithTimeout(time.Minute).Should(gexec.Exit(1))
		Expect(clean.Err).To(gbytes.Say("another usher process manages the portals"))
		rules := lab.State(l.Node)
		next := startKept(l.Node, dir, "--portal=nftables", "--take-over")
		Eventually(k).WithTimeout(time.Minute).Should(gexec.Exit(0))
		Expect(lab.State(l.Node)).To(Equal(rules))
		Expect(ask(l.Pods.NewDialer(1), web.vip())).To(Equal(web.endpoints[0]))
		next.stop()
	})

	It("exits in a Pod if it was taken over during a pause and that instance ends", func() {
		Expect(os.Setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")).To(Succeed())
		DeferCleanup(os.Unsetenv, "KUBERNETES_SERVICE_HOST")
		k := startKept(l.Node, dir, "--portal=nftables")
		crashUntil(k, "12.8s") // as above
		next := startKept(l.Node, dir, "--portal=nftables", "--take-over")
		Consistently(k).WithTimeout(time.Second).ShouldNot(gexec.Exit())
		next.stop()
		Eventually(k).WithTimeout(time.Minute).Should(gexec.Exit(0))
		Expect(k.Err).To(gbytes.Say("The usher instance that took over has ended"))
	})

	It("exits with usher's exit code if usher cannot start, and removes all rules when it is interrupted", func() {
		before := lab.State(l.Node)
		u := launchUsher(l.Node, dir, "--keeper", "--portal=nonsense")
		Eventually(u).WithTimeout(time.Minute).Should(gexec.Exit(2))
		first := startKept(l.Node, dir, "--portal=nftables")
		second := launchUsher(l.Node, dir, "--keeper", "--portal=nftables")
		Eventually(second).WithTimeout(time.Minute).Should(gexec.Exit(75))
		Expect(ask(l.Pods.NewDialer(1), web.vip())).To(Equal(web.endpoints[0]))
		Expect(lab.Children(first.Command.Process.Pid)).To(HaveLen(1))

		first.crash()
		first.Interrupt()
		Eventually(first).WithTimeout(time.Minute).Should(gexec.Exit(0))
		Expect(lab.State(l.Node)).To(Equal(before))
		Expect(ask(l.Pods.NewDialer(1), web.vip())).Error().To(HaveOccurred())
	})

	It("leaves usher running when it is killed, and the next keeper takes over", func() {
		first := startKept(l.Node, dir, "--portal=nftables")
		orphan := first.child()
		first.Command.Process.Kill()
		Expect(ask(l.Pods.NewDialer(1), web.vip())).To(Equal(web.endpoints[0]))
		second := startKept(l.Node, dir, "--portal=nftables", "--take-over")
		Eventually(first).WithTimeout(time.Minute).Should(gexec.Exit())
		Eventually(lab.Runs).WithArguments(orphan).WithTimeout(time.Minute).Should(BeFalse())
		second.crash()
		Expect(ask(l.Pods.NewDialer(1), web.vip())).To(Equal(web.endpoints[0]))
	})

	It("drops sockets that usher closes, and keeps those that usher opens", func() {
		k := startKept(l.Node, dir, "--portal=address")
		Expect(os.Remove(filepath.Join(dir, "web.yaml"))).To(Succeed())
		Eventually(func() error { _, err := ask(l.Pods.NewDialer(1), web.vip()); return err }).WithTimeout(30 * time.Second).Should(HaveOccurred())
		web.name = "other" // another Service at the same address and port
		web.write(dir)
		Eventually(func() error { _, err := ask(l.Pods.NewDialer(1), web.vip()); return err }).WithTimeout(30 * time.Second).Should(Succeed())
		k.crash()
		Expect(ask(l.Pods.NewDialer(1), web.vip())).To(Equal(web.endpoints[0]))
	})

	It("switches to the new program at its path on SIGHUP, and no connection fails", func() {
		copied := filepath.Join(GinkgoT().TempDir(), "usher")
		old := usherBinary
		install(old, copied)
		usherBinary = copied
		DeferCleanup(func() { usherBinary = old })
		// file returns the number of a file, and program that of a process's program.
		file := func(path string) uint64 {
			GinkgoHelper()
			var stat syscall.Stat_t
			Expect(syscall.Stat(path, &stat)).To(Succeed())
			return stat.Ino
		}
		program := func(pid int) uint64 { return file(fmt.Sprintf("/proc/%d/exe", pid)) }
		k := startKept(l.Node, dir, "--portal=nftables")
		before := program(k.Command.Process.Pid)
		traffic := startLoad(l.Pods.NewDialer(30), web.vip(), 200)
		for range 3 {
			install(old, copied)
			Expect(syscall.Kill(k.Command.Process.Pid, syscall.SIGHUP)).To(Succeed())
			Eventually(k.Err).WithTimeout(time.Minute).Should(gbytes.Say("the new usher instance is taking over"))
			Eventually(k.Err).WithTimeout(time.Minute).Should(gbytes.Say("has taken over"))
			Expect(program(k.child())).To(Equal(file(copied)))
		}
		Expect(program(k.Command.Process.Pid)).To(Equal(before), "the keeper is not replaced")
		By("keeping the current program if the new file is not a program")
		current := file(copied)
		Expect(os.Remove(copied)).To(Succeed())
		writeFile(copied, "not a program")
		Expect(syscall.Kill(k.Command.Process.Pid, syscall.SIGHUP)).To(Succeed())
		Eventually(k.Err).WithTimeout(time.Minute).Should(gbytes.Say("Failed to start the new program; keeping the current one"))
		traffic.end()
		if err := traffic.firstFailure.Load(); err != nil {
			Expect(*err).NotTo(HaveOccurred())
		}
		k.crash()
		Expect(program(k.child())).To(Equal(current))
		Expect(ask(l.Pods.NewDialer(1), web.vip())).To(Equal(web.endpoints[0]))
	})

	It("runs a second upgrade after the first, and waits for connections of previous instances", func() {
		// usher does not hand over a connection while clients of its Service are queued.
		web.metadata = `, annotations: {usher.io/max-connections-per-endpoint: "1", usher.io/queue-timeout: 5m}`
		web.write(dir)
		k := startKept(l.Node, dir, "--portal=nftables")
		first := k.child()
		c, err := l.Pods.NewDialer(1).Dial("", web.vip(), 5*time.Second)
		Expect(err).NotTo(HaveOccurred())
		defer c.Close()
		_, err = readName(c)
		Expect(err).NotTo(HaveOccurred())
		queued, err := l.Pods.NewDialer(1).Dial("", web.vip(), 5*time.Second)
		Expect(err).NotTo(HaveOccurred())
		defer queued.Close()
		Eventually(func() string { return l.Node.Output("curl", "-s", "http://127.0.0.1:10249/api/v1/status") }).Should(ContainSubstring(`"accepted":2,"established":1,`))

		keeper := k.Command.Process.Pid
		Expect(syscall.Kill(keeper, syscall.SIGHUP)).To(Succeed())
		Eventually(k.Err).WithTimeout(time.Minute).Should(gbytes.Say("the new usher instance is taking over"))
		Expect(syscall.Kill(keeper, syscall.SIGHUP)).To(Succeed())
		Eventually(k.Err).WithTimeout(time.Minute).Should(gbytes.Say("Upgrading again"))
		Eventually(k.Err).WithTimeout(time.Minute).Should(gbytes.Say("the new usher instance is taking over"))
		Eventually(func() []int { return lab.Children(keeper) }).WithTimeout(time.Minute).Should(And(HaveLen(2), ContainElement(first)))
		Expect(ask(l.Pods.NewDialer(1), web.vip())).To(Equal(web.endpoints[0]))

		Expect(syscall.Kill(keeper, syscall.SIGTERM)).To(Succeed())
		Eventually(k.Err).WithTimeout(time.Minute).Should(gbytes.Say("Keeper waiting for previous usher instances"))
		Expect(pingPong(c)).To(Succeed())
		Expect(queued.Close()).To(Succeed())
		Expect(c.Close()).To(Succeed())
		Eventually(k).WithTimeout(time.Minute).Should(gexec.Exit(0))
	})

	It("holds one copy of the client affinities however often usher crashes", func() {
		web.spec = "  sessionAffinity: ClientIP\n"
		web.write(dir)
		k := startKept(l.Node, dir, "--portal=nftables")
		held := func() (count int) {
			files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", k.Command.Process.Pid))
			Expect(err).NotTo(HaveOccurred())
			for _, file := range files {
				if to, _ := os.Readlink(file); strings.Contains(to, "memfd:affinities") { // it may be closed
					count++
				}
			}
			return count
		}
		for range 5 {
			Expect(ask(l.Pods.NewDialer(1), web.vip())).To(Equal(web.endpoints[0]))
			Eventually(held).WithTimeout(time.Minute).Should(BeNumerically(">", 0))
			k.crash()
			Expect(held()).To(BeNumerically("<=", 2), "the previous copy, and perhaps a new one")
		}
		Expect(ask(l.Pods.NewDialer(1), web.vip())).To(Equal(web.endpoints[0]))
		Eventually(held).WithTimeout(time.Minute).Should(Equal(1))
		k.stop()
	})

	It("leaves no old instance behind on SIGHUP with --portal=none", func() {
		copied := filepath.Join(GinkgoT().TempDir(), "usher")
		install(usherBinary, copied)
		old := usherBinary
		usherBinary = copied
		DeferCleanup(func() { usherBinary = old })
		k := startKept(l.Node, dir, "--portal=none")
		for range 2 {
			Expect(syscall.Kill(k.Command.Process.Pid, syscall.SIGHUP)).To(Succeed())
			Eventually(k.Err).WithTimeout(time.Minute).Should(gbytes.Say("the new usher instance is taking over"))
			Eventually(k.Err).WithTimeout(time.Minute).Should(gbytes.Say("Serving"))
			k.child()
		}
		k.stop()
	})

	It("leaves no old instance behind on SIGHUP in a Pod", func() {
		Expect(os.Setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")).To(Succeed())
		DeferCleanup(os.Unsetenv, "KUBERNETES_SERVICE_HOST")
		k := startKept(l.Node, dir, "--portal=nftables")
		first := k.child()
		Expect(syscall.Kill(k.Command.Process.Pid, syscall.SIGHUP)).To(Succeed())
		Eventually(k.Err).WithTimeout(time.Minute).Should(gbytes.Say("Another usher instance has taken over"))
		Expect(k.child()).NotTo(Equal(first))
		Expect(ask(l.Pods.NewDialer(1), web.vip())).To(Equal(web.endpoints[0]))
		k.stop()
	})
})

// install puts a new copy of a program at a path, atomically.
func install(program, path string) {
	GinkgoHelper()
	binary, err := os.ReadFile(program)
	Expect(err).NotTo(HaveOccurred())
	Expect(os.WriteFile(path+".new", binary, 0o755)).To(Succeed())
	Expect(os.Rename(path+".new", path)).To(Succeed())
}

// get returns the HTTP response for path.
func get(d *lab.Dialer, address, path string) (string, error) {
	c, err := d.Dial("", address, 30*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n", path); err != nil {
		return "", err
	}
	var b strings.Builder
	_, err = io.Copy(&b, c)
	return b.String(), err
}
