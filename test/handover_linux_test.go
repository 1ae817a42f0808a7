package test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"

	portals "github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/portal/modes"
	"github.com/usherproxy/usher/test/lab"
)

// startWorkers starts count workers, which must return when stop is closed. end closes stop and
// waits for all workers; it is also called when the test ends.
func startWorkers(count int, work func(worker int, stop <-chan struct{})) (end func()) {
	stop := make(chan struct{})
	var workers sync.WaitGroup
	for worker := range count {
		workers.Go(func() { work(worker, stop) })
	}
	end = sync.OnceFunc(func() {
		close(stop)
		workers.Wait()
	})
	DeferCleanup(end)
	return end
}

// tick waits for the ticker, and reports whether stop is still open. It checks stop again after the
// tick, because a worker that is behind always finds a tick.
func tick(ticker *time.Ticker, stop <-chan struct{}) bool {
	select {
	case <-stop:
		return false
	case <-ticker.C:
	}
	select {
	case <-stop:
		return false
	default:
		return true
	}
}

// load makes new connections to a Service at a steady rate, or sends requests to a UDP Service.
type load struct {
	made, failed atomic.Int64
	firstFailure atomic.Pointer[error]
	end          func()
}

// startLoad opens about perSecond connections a second to vip, and exchanges some bytes
// on each.
func startLoad(d *lab.Dialer, vip string, perSecond int) *load {
	l := &load{}
	const workers = 20
	l.end = startWorkers(workers, func(_ int, stop <-chan struct{}) {
		ticker := time.NewTicker(time.Duration(workers) * time.Second / time.Duration(perSecond))
		defer ticker.Stop()
		for tick(ticker, stop) {
			l.made.Add(1)
			if err := connectAndTalk(d, vip); err != nil {
				l.failed.Add(1)
				l.firstFailure.CompareAndSwap(nil, &err)
			}
		}
	})
	return l
}

// connectAndTalk opens a connection, reads the backend's name, and exchanges some bytes.
func connectAndTalk(d *lab.Dialer, vip string) error {
	c, err := d.Dial("", vip, 30*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := readName(c); err != nil {
		return err
	}
	return pingPong(c)
}

func pingPong(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("ping")); err != nil {
		return err
	}
	buf := make([]byte, 4)
	_, err := io.ReadFull(c, buf)
	if err == nil && string(buf) != "ping" {
		err = fmt.Errorf("%q came back", buf)
	}
	return err
}

// startUDPLoad starts 10 clients that use a new socket for each request, as
// resolvers do, and 10 that keep their socket. Each sends at most 20 requests a second.
func startUDPLoad(d *lab.Dialer, vip string) *load {
	l := &load{}
	l.end = startWorkers(20, func(i int, stop <-chan struct{}) {
		var stays net.Conn
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for tick(ticker, stop) {
			c := stays
			if c == nil {
				var err error
				if c, err = d.DialUDP("", vip); err != nil {
					l.firstFailure.CompareAndSwap(nil, &err)
					return
				}
			}
			if i < 10 {
				stays = c
			}
			n := l.made.Add(1)
			if err := askUDP(c, n); err != nil {
				l.firstFailure.CompareAndSwap(nil, &err)
			}
			if stays == nil {
				c.Close()
			}
		}
	})
	return l
}

// askUDP sends request number n, and waits for its reply. With the race detector on a busy machine, a takeover with two
// thousand sessions may need seconds during which requests wait.
func askUDP(c net.Conn, n int64) error {
	began := time.Now()
	request := fmt.Sprintf("request %d", n)
	if _, err := c.Write([]byte(request)); err != nil {
		return err
	}
	if err := c.SetReadDeadline(began.Add(30 * time.Second)); err != nil {
		return err
	}
	buf := make([]byte, 100)
	for {
		size, err := c.Read(buf)
		if err != nil {
			return fmt.Errorf("%s from %s at %s: %w", request, c.LocalAddr(), began.Format("15:04:05.000"), err)
		}
		if string(buf[:size]) == request {
			return nil
		}
	}
}

// mirrored is a client of a mirror.
type mirrored struct {
	*net.UDPConn
	saw string // the first reply
}

func (m *mirrored) ask() (string, error) {
	answer, err := exchange(m, []byte("who"), 30*time.Second)
	return string(answer), err
}

// again sends another request, and expects the same reply.
func (m *mirrored) again() error {
	sees, err := m.ask()
	if err == nil && sees != m.saw {
		err = fmt.Errorf("%s, and before %s", sees, m.saw)
	}
	return err
}

// startMirror starts an endpoint that replies with the endpoint's address and the client's.
func startMirror(ns *lab.Namespace, at netip.AddrPort) netip.AddrPort {
	GinkgoHelper()
	lab.ServeUDP(ns.ListenUDP(at.String()), func(_ []byte, from netip.AddrPort) []byte {
		return fmt.Appendf(nil, "%s was asked from %s", at, from)
	})
	return at
}

var _ = Describe("a takeover from a running instance", serial, func() {
	for _, portal := range []string{"iptables", "nftables", "address"} {
		Describe("with the "+portal+" portal", func() { handoverSpecs(portal) })
	}
})

func handoverSpecs(portal string) {
	var (
		l   *lab.Lab
		pod *lab.Dialer
		dir string
		web service
	)
	BeforeEach(func() {
		if portal == "iptables" {
			missing("iptables")
		}
		l = lab.New()
		pod = l.Pods.NewDialer(30)
		dir = manifestsDir()
		web = service{name: "web", clusterIP: clusterIP, port: 80}
		for n := 1; n <= 3; n++ {
			web.endpoints = append(web.endpoints, startBackend(l.Pods, lab.Pod(n), 8080).addr)
		}
		web.write(dir)
	})
	start := func(args ...string) *usher {
		GinkgoHelper()
		return startUsher(l.Node, dir, append([]string{"--portal=" + portal}, args...)...)
	}

	It("loses no UDP request, five times in a row", func() {
		dns := service{name: "dns", clusterIP: "10.96.0.53", port: 53, protocol: "UDP"}
		for n := 1; n <= 3; n++ {
			dns.endpoints = append(dns.endpoints, startEcho(l.Pods, lab.Pod(n)))
		}
		dns.write(dir)
		current := start()
		traffic := startUDPLoad(pod, dns.vip())
		for range 5 {
			previous := current
			current = start("--take-over")
			Eventually(previous).WithTimeout(time.Minute).Should(gexec.Exit(0), "exits once its clients have their replies")
			made := traffic.made.Load()
			Eventually(traffic.made.Load).WithTimeout(30 * time.Second).Should(BeNumerically(">", made+200))
		}
		traffic.end()
		AddReportEntry("UDP requests", traffic.made.Load())
		if err := traffic.firstFailure.Load(); err != nil {
			Expect(*err).NotTo(HaveOccurred())
		}
	})

	It("keeps each UDP client's endpoint and the client port that the endpoint sees", func() {
		var vips []string
		for _, vip := range []string{"10.96.0.53", "fd00:96::53"} {
			dns := service{name: "dns" + strconv.Itoa(len(vip)), clusterIP: vip, port: 53, protocol: "UDP"}
			for n := 1; n <= 3; n++ {
				at := lab.Pod(n)
				if strings.Contains(vip, ":") {
					at = lab.Pod6(n)
				}
				dns.endpoints = append(dns.endpoints, startMirror(l.Pods, netip.AddrPortFrom(at, 5300)))
			}
			dns.write(dir)
			vips = append(vips, dns.vip())
		}
		current := start()
		var clients []*mirrored
		come := func() {
			c, err := pod.DialUDP("", vips[len(clients)%2])
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(c.Close)
			m := &mirrored{UDPConn: c}
			m.saw, err = m.ask()
			Expect(err).NotTo(HaveOccurred())
			clients = append(clients, m)
		}
		for range 400 {
			come()
		}
		for range 3 {
			previous := current
			current = launchUsher(l.Node, dir, "--portal="+portal, "--take-over")
			for ended := false; !ended; {
				if len(clients) < 1000 { // one client address may hold a share of the sessions that open files allow
					come() // during the takeover
				}
				Expect(clients[rand.IntN(len(clients))].again()).To(Succeed())
				select {
				case <-previous.Exited:
					ended = true
				default:
				}
			}
			for _, c := range clients {
				Expect(c.again()).To(Succeed())
			}
		}
		AddReportEntry("clients", len(clients))
	})

	It("keeps clients' endpoints with ClientIP affinity, also after restarts by a keeper", func() {
		web.spec = "  sessionAffinity: ClientIP\n"
		web.write(dir)
		had := map[netip.Addr]netip.AddrPort{}
		come := func() {
			for n := 4; n <= 60; n++ {
				client := lab.Pod(n)
				e, err := askFrom(pod, client.String(), web.vip())
				Expect(err).NotTo(HaveOccurred())
				if before, came := had[client]; came {
					Expect(e).To(Equal(before), client.String())
				}
				had[client] = e
			}
		}
		current := start()
		for range 2 {
			come()
			previous := current
			current = start("--take-over")
			Eventually(previous).WithTimeout(time.Minute).Should(gexec.Exit(0))
		}
		first := startKept(l.Node, dir, "--portal="+portal, "--take-over")
		Eventually(current).WithTimeout(time.Minute).Should(gexec.Exit(0))
		come()
		kept := startKept(l.Node, dir, "--portal="+portal, "--take-over")
		Eventually(first).WithTimeout(time.Minute).Should(gexec.Exit(0))
		for range 2 {
			come()
			Eventually(func() (unsaved []netip.Addr) {
				saved := lab.SavedAffinities(kept.Command.Process.Pid)
				for client := range had {
					if !bytes.Contains(saved, client.AsSlice()) {
						unsaved = append(unsaved, client)
					}
				}
				return unsaved
			}).WithTimeout(time.Minute).Should(BeEmpty())
			kept.crash()
		}
		come()
	})

	It("installs the new instance's Services, removes those that only the old one served, and applies the new --keepalive", func() {
		old := start()
		other := service{name: "other", clusterIP: "10.96.0.20", port: 80, endpoints: web.endpoints}
		dir = manifestsDir()
		other.write(dir)
		start("--take-over", "--keepalive=50s")
		Eventually(old).WithTimeout(time.Minute).Should(gexec.Exit(0))
		Expect(connectAndTalk(pod, other.vip())).To(Succeed())
		Expect(lab.State(l.Node)).NotTo(ContainSubstring(clusterIP+"/32"), "the Service that only the old instance served is removed")
		c, err := pod.Dial("", other.vip(), 10*time.Second)
		Expect(err).NotTo(HaveOccurred())
		defer c.Close()
		Expect(readName(c)).Error().NotTo(HaveOccurred())
		client := strings.ReplaceAll(c.LocalAddr().String(), ".", `\.`)
		Eventually(func() string { return l.Node.Output("ss", "-tnHo") }).WithTimeout(30 * time.Second).Should(MatchRegexp(client + ` .*timer:\(keepalive,[1-5]?\dsec,0\)`))
	})

	It("leaves the old instance serving if the new one aborts", func() {
		dns := service{name: "dns", clusterIP: "10.96.0.53", port: 53, protocol: "UDP", endpoints: []netip.AddrPort{startMirror(l.Pods, netip.AddrPortFrom(lab.Pod(1), 5300))}}
		dns.write(dir)
		u := start()
		c, err := pod.DialUDP("", dns.vip())
		Expect(err).NotTo(HaveOccurred())
		defer c.Close()
		client := mirrored{UDPConn: c}
		client.saw, err = client.ask()
		Expect(err).NotTo(HaveOccurred())
		// A successor asks for the handover and aborts it.
		l.Node.Do(func() error {
			successor, err := handover.Ask()
			if err != nil {
				return err
			}
			defer successor.Abort()
			if err := successor.More(); err != nil {
				return err
			}
			// It has another portal, and no listener any more.
			mode := map[bool]string{true: "iptables", false: "nftables"}[portal == "nftables"]
			other, err := modes.New(context.Background(), mode, portals.Options{})
			if err != nil {
				return err
			}
			vip := netip.MustParseAddrPort(web.vip())
			return other.Apply(context.Background(), []portals.Rule{{Target: portals.Target{Addr: vip.Addr(), Port: vip.Port(), Protocol: portals.TCP}, LocalPort: 1}}, nil).Err
		})
		Eventually(func() error { _, err := ask(pod, web.vip()); return err }).WithTimeout(30*time.Second).Should(Succeed(), "the old instance removes rules of the failed one")
		Expect(client.again()).To(Succeed())
		web.endpoints = web.endpoints[:1]
		web.write(dir)
		Eventually(func() (map[netip.AddrPort]bool, error) {
			seen := map[netip.AddrPort]bool{}
			for range 6 {
				e, err := ask(pod, web.vip())
				if err != nil {
					return nil, err
				}
				seen[e] = true
			}
			return seen, nil
		}).WithTimeout(30*time.Second).Should(HaveLen(1), "the old instance still follows changes")
		u.stop()
	})

	It("after kill -9 fails connections only until the new process serves", func() {
		u := start()
		traffic := startLoad(pod, web.vip(), 200)
		Eventually(traffic.made.Load).Should(BeNumerically(">", 50))
		Expect(traffic.failed.Load()).To(BeZero())
		u.Kill().Wait(30 * time.Second)
		if portal == "address" { // the others refuse no connection meanwhile: clients retransmit
			Eventually(traffic.failed.Load).WithTimeout(30 * time.Second).Should(BeNumerically(">", 0))
		}
		start()
		before := traffic.failed.Load()
		made := traffic.made.Load()
		Eventually(traffic.made.Load).WithTimeout(30 * time.Second).Should(BeNumerically(">", made+200))
		traffic.end()
		Expect(traffic.failed.Load()-before).To(BeNumerically("<=", 20), "only connections in progress fail")
	})
}

var _ = Describe("two usher instances", func() {
	It("exclude each other even if another process occupies the names of their lock", func() {
		l := lab.New()
		l.Node.Do(func() error { // never answers, so it proves no capability
			for _, name := range []string{"@usher-portal", "@usher-portal/1"} {
				squatter, err := net.Listen("unixpacket", name)
				if err != nil {
					return err
				}
				DeferCleanup(squatter.Close)
			}
			return nil
		})
		dir := manifestsDir()
		service{name: "web", clusterIP: clusterIP, port: 80}.write(dir)
		u := launchUsher(l.Node, dir, "--portal=address")
		Eventually(u.Err).WithTimeout(time.Minute).Should(gbytes.Say("claims to manage the portals: it has another user ID, or lacks CAP_NET_ADMIN"))
		Eventually(u.Err).WithTimeout(time.Minute).Should(gbytes.Say("Serving"))
		second := launchUsher(l.Node, dir, "--portal=address")
		Eventually(second).WithTimeout(time.Minute).Should(gexec.Exit(75))
		Expect(second.Err).To(gbytes.Say(`another usher process manages the portals of this network namespace \(process \d+ of user 0\)`))
		u.stop()
		Eventually(launch(l.Node, exec.Command(usherBinary, "cleanup"), "")).WithTimeout(time.Minute).Should(gexec.Exit(0))
	})
	It("reject a takeover by an unprivileged process, which can only run without a portal", func() {
		l := lab.New()
		dir := manifestsDir()
		service{name: "web", clusterIP: clusterIP, port: 80}.write(dir)
		Expect(os.Chmod(dir, 0o755)).To(Succeed())
		program := usherForNobody()
		begin := func() *usher {
			return launch(l.Node, asNobody(program, "run", "--take-over", "--manifests", dir), dir)
		}
		alone := begin()
		Eventually(alone.Err).WithTimeout(time.Minute).Should(gbytes.Say("VIPs are not served: this process cannot install a portal"))
		alone.stop()
		inPod := asNobody(program, "run", "--take-over", "--manifests", dir)
		inPod.Env = append(os.Environ(), "KUBERNETES_SERVICE_HOST=10.96.0.1")
		u := launch(l.Node, inPod, dir)
		Eventually(u).WithTimeout(time.Minute).Should(gexec.Exit(1))
		Expect(u.Err).To(gbytes.Say("cannot install a portal.*set --portal=none"))
		startUsher(l.Node, dir)
		late := begin()
		Eventually(late).WithTimeout(time.Minute).Should(gexec.Exit(1))
		Expect(late.Err).To(gbytes.Say("--take-over: an usher instance is running here, but this process cannot install a portal.*CAP_NET_ADMIN"))
	})

	It("hand over the --healthz-address", func() {
		l := lab.New()
		dir := manifestsDir()
		service{name: "web", clusterIP: clusterIP, port: 80}.write(dir)
		old := startUsher(l.Node, dir, "--portal=address", "--healthz-address=127.0.0.1:10256")
		newer := startUsher(l.Node, dir, "--portal=address", "--healthz-address=127.0.0.1:10256", "--take-over")
		Eventually(old).WithTimeout(time.Minute).Should(gexec.Exit(0))
		Eventually(func() string { return string(newer.Err.Contents()) }).WithTimeout(30*time.Second).
			Should(ContainSubstring("Listening after retries\" flag=--healthz-address"), "logged before or after it serves")
		c, err := l.Node.NewDialer(1).Dial("", "127.0.0.1:10256", 10*time.Second)
		Expect(err).NotTo(HaveOccurred())
		defer c.Close()
		Expect(io.WriteString(c, "GET /healthz HTTP/1.0\r\n\r\n")).Error().NotTo(HaveOccurred())
		Expect(io.ReadAll(c)).To(HavePrefix("HTTP/1.0 200 OK"))
	})
})
