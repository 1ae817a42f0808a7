package test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"

	bench "github.com/usherproxy/usher/test/bench/load"
	"github.com/usherproxy/usher/test/lab"
)

const clusterIP = "10.96.0.10"

// These specs hold for every portal.
var _ = Describe("TCP through", func() {
	for _, portal := range []string{"iptables", "nftables", "address"} {
		Describe("the "+portal+" portal", func() { tcpSpecs(portal) })
	}
})

func tcpSpecs(portal string) {
	var (
		l       *lab.Lab
		pod     *lab.Dialer // a Pod that is a client
		node    *lab.Dialer // a process of the node
		web     service
		dir     string
		address = func(n int, port uint16) netip.AddrPort { return netip.AddrPortFrom(lab.Pod(n), port) }
	)
	BeforeEach(func() {
		if portal == "iptables" {
			missing("iptables")
		}
		l = lab.New()
		pod, node = l.Pods.NewDialer(64), l.Node.NewDialer(4)
		web = service{name: "web", clusterIP: clusterIP, port: 80}
		dir = manifestsDir()
	})
	start := func(args ...string) *usher {
		GinkgoHelper()
		web.write(dir)
		return startUsher(l.Node, dir, append([]string{"--portal=" + portal}, args...)...)
	}

	It("reaches all endpoints in rotation, from Pods and from the node, over IPv4 and IPv6", lab.Smoke, func() {
		for n := 1; n <= 3; n++ {
			web.endpoints = append(web.endpoints, startBackend(l.Pods, lab.Pod(n), 8080).addr)
		}
		six := service{name: "six", clusterIP: "fd00:10:96::10", port: 80, endpoints: []netip.AddrPort{startBackend(l.Pods, lab.Pod6(1), 8080).addr}}
		six.write(dir)
		start(longDials)
		for _, client := range []*lab.Dialer{pod, node} {
			seen := map[netip.AddrPort]int{}
			for range 9 {
				endpoint, err := ask(client, web.vip())
				Expect(err).NotTo(HaveOccurred())
				seen[endpoint]++
			}
			Expect(seen).To(Equal(map[netip.AddrPort]int{web.endpoints[0]: 3, web.endpoints[1]: 3, web.endpoints[2]: 3}))
			Expect(ask(client, six.vip())).To(Equal(six.endpoints[0]))
		}
	})

	It("keeps open connections when their Service is removed", func() {
		b := startBackend(l.Pods, lab.Pod(1), 8080)
		web.endpoints = []netip.AddrPort{b.addr}
		if portal == "iptables" {
			// Without any translating rule the kernel stops tracking connections.
			service{name: "other", clusterIP: "10.96.0.33", port: 80}.write(dir)
		}
		u := start("--portal-check-interval=200ms")
		var open []*net.TCPConn
		for _, client := range []*lab.Dialer{pod, node} {
			c, err := client.Dial("", web.vip(), 10*time.Second)
			Expect(err).NotTo(HaveOccurred())
			defer c.Close()
			Expect(readName(c)).To(Equal(b.addr))
			open = append(open, c)
		}
		Expect(os.Remove(filepath.Join(dir, web.name+".yaml"))).To(Succeed())
		gone := HaveOccurred() // forwarded out of the node, where no host answers
		if portal == "address" {
			gone = refused
		}
		Eventually(func() error {
			c, err := pod.Dial("", web.vip(), 500*time.Millisecond)
			if err == nil {
				c.Close()
			}
			return err
		}).WithTimeout(30 * time.Second).Should(gone)
		echoes := func() {
			GinkgoHelper()
			for _, c := range open {
				Expect(c.SetDeadline(time.Now().Add(30 * time.Second))).To(Succeed())
				_, err := c.Write([]byte("?"))
				Expect(err).NotTo(HaveOccurred())
				_, err = c.Read(make([]byte, 1))
				Expect(err).NotTo(HaveOccurred())
			}
		}
		echoes()
		if portal != "address" {
			return
		}

		By("restarting while the old process drains")
		u.Terminate()
		Eventually(u.Err).WithTimeout(30 * time.Second).Should(gbytes.Say("Stopping"))
		web2 := web
		web2.name, web2.clusterIP = "web2", "10.96.0.22"
		web2.write(dir)
		startUsher(l.Node, dir, "--portal="+portal, "--portal-check-interval=200ms")
		Expect(ask(pod, web2.vip())).To(Equal(b.addr))
		echoes()

		By("closing the connections")
		for _, c := range open {
			c.Close()
		}
		Eventually(func() string {
			return l.Node.Output("ip", "route", "show", "table", "local", "proto", "117")
		}).WithTimeout(30 * time.Second).Should(And(ContainSubstring("10.96.0.22"), Not(ContainSubstring("10.96.0.10"))))
	})

	It("loses no connection to a refusing and an unresponsive endpoint, which soon add no latency", func() {
		good := startBackend(l.Pods, lab.Pod(1), 8080)
		takes := func(s service) time.Duration {
			GinkgoHelper()
			started := time.Now()
			Expect(ask(pod, s.vip())).To(Equal(good.addr))
			return time.Since(started)
		}
		plain := service{name: "plain", clusterIP: "10.96.0.20", port: 80, endpoints: []netip.AddrPort{good.addr}}
		plain.write(dir)
		web.endpoints = []netip.AddrPort{good.addr, address(2, 8080), netip.MustParseAddrPort(lab.BlackHole + ":8080")}
		start()
		for takes(web) < 200*time.Millisecond { // until one connection has waited for the unresponsive endpoint
		}
		var one, three []time.Duration
		for range 200 { // alternating, so that both meet the same machine load
			one, three = append(one, takes(plain)), append(three, takes(web))
		}
		slices.Sort(one)
		slices.Sort(three)
		alone, together := one[len(one)/2], three[len(three)/2]
		AddReportEntry("median", fmt.Sprintf("good endpoint alone %s, with two bad ones %s", alone, together))
		Expect(together).To(BeNumerically("<", 2*alone+time.Millisecond))
	})

	It("does not delay a connection while another one is retried", func() {
		good := startBackend(l.Pods, lab.Pod(1), 8080)
		web.endpoints = []netip.AddrPort{good.addr, netip.MustParseAddrPort(lab.BlackHole + ":8080")}
		start("--quarantine=0s", "--dial-timeouts=5s,5s") // so that every second connection meets the unresponsive endpoint
		var wg sync.WaitGroup
		var mu sync.Mutex
		var quick, slow int
		for range 100 {
			wg.Go(func() {
				defer GinkgoRecover()
				started := time.Now()
				Expect(ask(pod, web.vip())).To(Equal(good.addr))
				mu.Lock()
				defer mu.Unlock()
				if time.Since(started) < 4*time.Second {
					quick++
				} else {
					slow++
				}
			})
		}
		wg.Wait()
		// There are 64 client threads: the last 36 connections start when others are done.
		Expect(quick).To(BeNumerically(">=", 45), "connections that got the good endpoint first; %d were slow", slow)
	})

	It("waits for an endpoint that is restarting", func() {
		web.endpoints = []netip.AddrPort{address(1, 8080)}
		start("--dial-timeouts=250ms,500ms,1s,2s,4s,8s")
		began := time.Now()
		time.AfterFunc(2*time.Second, func() {
			defer GinkgoRecover()
			startBackend(l.Pods, lab.Pod(1), 8080)
		})
		Expect(ask(pod, web.vip())).To(Equal(web.endpoints[0]))
		Expect(time.Since(began)).To(BeNumerically(">=", 2*time.Second), "the next attempts are at 3.75 and 7.75 s")
	})

	It("refuses clients at once without endpoints until one is added, and resets the client when every attempt failed", func() {
		failing := service{name: "failing", clusterIP: "10.96.0.11", port: 80, endpoints: []netip.AddrPort{address(2, 8080)}}
		failing.write(dir)
		u := start("--trace", "--dial-timeouts=50ms,50ms")
		for _, client := range []*lab.Dialer{pod, node} {
			quickest := time.Hour
			for range 3 {
				began := time.Now()
				Expect(ask(client, web.vip())).Error().To(refused)
				quickest = min(quickest, time.Since(began))
			}
			Expect(quickest).To(BeNumerically("<", time.Second), "an unanswered SYN is retransmitted after 1 s")
		}
		web.endpoints = []netip.AddrPort{startBackend(l.Pods, lab.Pod(1), 8080).addr}
		web.write(u.manifests)
		Eventually(func() error { _, err := ask(pod, web.vip()); return err }).WithTimeout(30 * time.Second).Should(Succeed())

		By("refusing again after the last endpoint is removed")
		web.endpoints = nil
		web.write(u.manifests)
		Eventually(func() error { _, err := ask(pod, web.vip()); return err }).WithTimeout(30 * time.Second).Should(refused)

		By("resetting the client when every attempt failed")
		Expect(ask(pod, failing.vip())).Error().To(reset)
		Eventually(u.Out).Should(gbytes.Say(`attempt 1 → 10\.244\.0\.12:8080 \(only one left\): connection refused after`))
		Eventually(u.Out).Should(gbytes.Say(`attempt 3 → .*connection refused`))
		Eventually(u.Out).Should(gbytes.Say(`closed after .*: attempts-failed`))
	})

	It("carries half-close both ways, byte for byte, through thousands of connections, 200 at a time", func() {
		question := make([]byte, 1<<20)
		answer := make([]byte, 1<<20)
		rnd := rand.NewChaCha8([32]byte{7})
		rnd.Read(question)
		rnd.Read(answer)
		// The server sends back as many bytes as it received, once the client has half-closed.
		lab.Serve(l.Pods.Listen(address(1, 9000).String()), func(c net.Conn) {
			got, err := io.ReadAll(c)
			if err == nil && bytes.Equal(got, question[:len(got)]) {
				_, _ = c.Write(answer[:len(got)])
			}
		})
		web.endpoints = []netip.AddrPort{address(1, 9000)}
		start()
		exchange := func(size int) error {
			c, err := pod.Dial("", web.vip(), 10*time.Second)
			if err != nil {
				return err
			}
			defer c.Close()
			if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
				return err
			}
			if _, err := c.Write(question[:size]); err != nil {
				return err
			}
			if err := c.CloseWrite(); err != nil {
				return err
			}
			got, err := io.ReadAll(c)
			if err == nil && !bytes.Equal(got, answer[:size]) {
				err = fmt.Errorf("%d bytes sent, %d came back or they differ", size, len(got))
			}
			return err
		}
		for range 5 {
			Expect(exchange(1 << 20)).To(Succeed())
		}
		const each = 20
		var failed atomic.Int64
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() {
				defer GinkgoRecover()
				for i := range each {
					if err := exchange(1 + i*251%5000); err != nil {
						failed.Add(1)
						AddReportEntry("failed", err.Error())
					}
				}
			})
		}
		wg.Wait()
		Expect(failed.Load()).To(BeZero())
	})

	It("keeps a client's endpoint with ClientIP affinity, until timeoutSeconds after its last new connection or the endpoint's end", func() {
		web.spec = "  sessionAffinity: ClientIP\n  sessionAffinityConfig: {clientIP: {timeoutSeconds: 600}}\n"
		for n := 1; n <= 3; n++ {
			web.endpoints = append(web.endpoints, startBackend(l.Pods, lab.Pod(n), 8080).addr)
		}
		short := web
		short.name, short.clusterIP, short.spec = "short", "10.96.0.11", strings.Replace(web.spec, "600", "2", 1)
		short.write(dir)
		u := start()
		first, err := ask(pod, web.vip())
		Expect(err).NotTo(HaveOccurred())
		for range 10 {
			Expect(ask(pod, web.vip())).To(Equal(first))
		}
		Expect(ask(node, web.vip())).NotTo(Equal(first))
		Expect(askFrom(pod, lab.Pod(50).String(), web.vip())).NotTo(Equal(first))

		By("forgetting a removed endpoint")
		web.endpoints = slices.DeleteFunc(slices.Clone(web.endpoints), func(e netip.AddrPort) bool { return e == first })
		web.write(u.manifests)
		Eventually(func() (netip.AddrPort, error) { return ask(pod, web.vip()) }).WithTimeout(30 * time.Second).ShouldNot(Equal(first))

		By("replacing all endpoints but one by dead ones")
		second, err := ask(pod, web.vip())
		Expect(err).NotTo(HaveOccurred())
		web.endpoints = []netip.AddrPort{address(60, 1), second, address(61, 1)}
		web.write(u.manifests)
		for range 10 {
			Expect(ask(pod, web.vip())).To(Equal(second))
		}

		By("forgetting a client 2 s after its last new connection")
		asked := time.Now()
		first, err = ask(pod, short.vip())
		Expect(err).NotTo(HaveOccurred())
		for range 3 { // each new connection restarts the 2 s
			time.Sleep(1300 * time.Millisecond)
			before := asked
			asked = time.Now()
			next, err := ask(pod, short.vip())
			Expect(err).NotTo(HaveOccurred())
			if time.Since(before) < 2*time.Second { // unless this machine was busy
				Expect(next).To(Equal(first))
			}
			first = next
		}
		time.Sleep(2100 * time.Millisecond)
		Expect(ask(pod, short.vip())).NotTo(Equal(first))
	})

	It("fails and resets no connection while endpoints change ten times a second", func() {
		var backends []*backend
		for n := 1; n <= 6; n++ {
			backends = append(backends, startBackend(l.Pods, lab.Pod(n), 8080))
		}
		web.endpoints = []netip.AddrPort{backends[0].addr}
		u := start()
		changing, vip := web, web.vip()

		stop := make(chan struct{})
		var churn sync.WaitGroup
		churn.Go(func() {
			defer GinkgoRecover()
			ticker := time.NewTicker(100 * time.Millisecond)
			defer ticker.Stop()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-ticker.C:
				}
				changing.endpoints = nil
				for n := range 1 + i%3 {
					changing.endpoints = append(changing.endpoints, backends[(i+n)%len(backends)].addr)
				}
				changing.write(u.manifests)
			}
		})

		var wg sync.WaitGroup
		used := map[netip.AddrPort]bool{}
		var mu sync.Mutex
		for range 50 {
			wg.Go(func() {
				defer GinkgoRecover()
				for range 20 {
					c, err := pod.Dial("", vip, 10*time.Second)
					Expect(err).NotTo(HaveOccurred())
					endpoint, err := readName(c)
					Expect(err).NotTo(HaveOccurred())
					mu.Lock()
					used[endpoint] = true
					mu.Unlock()
					Expect(c.SetDeadline(time.Now().Add(10 * time.Second))).To(Succeed())
					for i := range 4 { // for 200 ms: over 2 changes
						message := fmt.Appendf(nil, "message %d", i)
						Expect(c.Write(message)).Error().NotTo(HaveOccurred())
						got := make([]byte, len(message))
						Expect(io.ReadFull(c, got)).Error().NotTo(HaveOccurred())
						Expect(got).To(Equal(message))
						time.Sleep(50 * time.Millisecond)
					}
					Expect(c.CloseWrite()).To(Succeed())
					Expect(io.ReadAll(c)).To(BeEmpty())
					c.Close()
				}
			})
		}
		wg.Wait()
		close(stop)
		churn.Wait()
		Expect(used).To(HaveLen(len(backends)), "all endpoints were used")
	})

	It("refuses no client while a port is renamed repeatedly, and serves a renamed Service without an error", func() {
		web.endpoints = []netip.AddrPort{startBackend(l.Pods, lab.Pod(1), 8080).addr}
		u := start()
		stop := make(chan struct{})
		var clients sync.WaitGroup
		var asked atomic.Int64
		end := sync.OnceFunc(func() {
			close(stop)
			clients.Wait()
		})
		defer end()
		for range 8 {
			clients.Go(func() {
				defer GinkgoRecover()
				for {
					select {
					case <-stop:
						return
					default:
					}
					Expect(ask(pod, web.vip())).To(Equal(web.endpoints[0]))
					asked.Add(1)
					time.Sleep(5 * time.Millisecond)
				}
			})
		}
		for i := range 10 {
			name := []string{"http", "main"}[i%2]
			writeFile(filepath.Join(u.manifests, "web.yaml"), strings.ReplaceAll(web.yaml(), "name: main", "name: "+name))
			Eventually(func() string { return adminText(node, "/api/v1/services/default/web") }).WithTimeout(30 * time.Second).Should(ContainSubstring(`"name":"` + name + `"`))
			before := asked.Load()
			Eventually(asked.Load).WithTimeout(30*time.Second).Should(BeNumerically(">", before+20), "clients after the change")
		}
		end()

		By("renaming the Service")
		for i := range 4 {
			renamed := web
			renamed.name = []string{"shop", "web"}[i%2]
			writeFile(filepath.Join(u.manifests, "web.yaml"), renamed.yaml())
			Eventually(func() string { return adminText(node, "/api/v1/services/default/"+renamed.name) }).WithTimeout(30 * time.Second).Should(ContainSubstring(`"state":"ok"`))
			Eventually(func() (netip.AddrPort, error) { return ask(pod, web.vip()) }).WithTimeout(30 * time.Second).Should(Equal(web.endpoints[0])) // the kernel's rules follow
		}
		Expect(string(u.Err.Contents())).NotTo(ContainSubstring("not served"))
	})

	It("survives a client that exhausts the descriptors, and still serves other clients and UDP", func() {
		good := startBackend(l.Pods, lab.Pod(1), 8080)
		web.endpoints = []netip.AddrPort{good.addr}
		web.write(dir)
		dns := service{name: "dns", clusterIP: "10.96.0.53", port: 53, protocol: "UDP", endpoints: []netip.AddrPort{startEcho(l.Pods, lab.Pod(2))}}
		dns.write(dir)
		u := launch(l.Node, exec.Command("sh", "-c", `ulimit -n 256 && exec "$0" run --log-format=text --portal=`+portal+` --manifests "$1"`, usherBinary, dir), dir)
		Eventually(u.Err).WithTimeout(time.Minute).Should(gbytes.Say("Serving"))

		var mu sync.Mutex
		var open []io.Closer
		var served, turnedAway int
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				defer GinkgoRecover()
				for range 20 {
					c, err := pod.Dial("", web.vip(), 10*time.Second)
					if err == nil {
						_, err = readName(c)
					}
					mu.Lock()
					if err == nil {
						open = append(open, c)
						served++
					} else {
						turnedAway++
					}
					mu.Unlock()
					Expect(err).To(Or(BeNil(), reset))
				}
			})
		}
		wg.Wait()
		Expect(served).To(BeNumerically("~", 70, 10), "7/8 of the connections that 256 descriptors allow in addition to UDP")
		Expect(turnedAway).To(Equal(1000 - served))
		Expect(bytes.Count(u.Err.Contents(), []byte("Too many connections"))).To(BeNumerically("<=", 3), "the log is not flooded")
		Expect(adminText(node, "/api/v1/connections?end=limit&limit=1")).To(ContainSubstring(`"vip":"` + web.vip() + `"`))

		By("serving clients with few connections")
		Expect(ask(node, web.vip())).To(Equal(good.addr))
		for range 10 {
			Expect(askWho(pod, "", dns.vip())).To(Equal(dns.endpoints[0]))
		}

		By("using little CPU time at the connection limit")
		Eventually(func() (time.Duration, error) {
			before, err := bench.CPUTime(u.Command.Process.Pid)
			if err != nil {
				return 0, err
			}
			time.Sleep(time.Second)
			after, err := bench.CPUTime(u.Command.Process.Pid)
			return after - before, err
		}).WithTimeout(30 * time.Second).Should(BeNumerically("<", 200*time.Millisecond))

		for _, c := range open {
			c.Close()
		}
		Eventually(sample(node, "usher_connections_open")).WithTimeout(30 * time.Second).Should(BeNumerically("<=", 2))
		for range 50 {
			Expect(ask(pod, web.vip())).To(Equal(good.addr))
		}
	})

	It("closes the sockets of reset clients even if their endpoint does not read", func() {
		endpoint := netip.AddrPortFrom(lab.Pod(1), 8080)
		defer l.Pods.Listen(endpoint.String()).Close() // its kernel accepts, and no process reads
		web.endpoints = []netip.AddrPort{endpoint}
		u := start()
		sockets := func() (n int) {
			fds := fmt.Sprintf("/proc/%d/fd/", u.Command.Process.Pid)
			entries, err := os.ReadDir(fds)
			Expect(err).NotTo(HaveOccurred())
			for _, e := range entries {
				if to, _ := os.Readlink(fds + e.Name()); strings.HasPrefix(to, "socket:") {
					n++
				}
			}
			return n
		}
		before := sockets()
		var clients sync.WaitGroup
		leaving := make(chan struct{})
		leave := sync.OnceFunc(func() { close(leaving) })
		defer leave()
		for range 10 {
			clients.Go(func() {
				defer GinkgoRecover()
				c, err := pod.Dial("", web.vip(), 10*time.Second)
				Expect(err).NotTo(HaveOccurred())
				defer c.Close()
				for chunk := make([]byte, 1<<20); err == nil; { // until all buffers are full
					Expect(c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))).To(Succeed())
					_, err = c.Write(chunk)
				}
				Expect(err).To(MatchError(os.ErrDeadlineExceeded))
				<-leaving
				Expect(c.SetLinger(0)).To(Succeed())
			})
		}
		Eventually(sample(node, "usher_connections_open")).WithTimeout(30 * time.Second).Should(Equal(10.0))
		leave()
		clients.Wait()
		Eventually(sockets).WithTimeout(30 * time.Second).Should(BeNumerically("<=", before))
		Eventually(sample(node, "usher_connections_open")).WithTimeout(30 * time.Second).Should(BeZero())
	})

	if portal == "nftables" {
		It("resets connections that exceed the drain timeout", func() {
			web.endpoints = []netip.AddrPort{startBackend(l.Pods, lab.Pod(1), 8080).addr}
			u := start("--drain-timeout=1s")
			stays, err := pod.Dial("", web.vip(), 10*time.Second)
			Expect(err).NotTo(HaveOccurred())
			Expect(readName(stays)).Error().NotTo(HaveOccurred())
			u.Terminate()
			Expect(stays.SetReadDeadline(time.Now().Add(30 * time.Second))).To(Succeed())
			Expect(stays.Read(make([]byte, 1))).Error().To(reset)
			Eventually(u.Err).WithTimeout(30 * time.Second).Should(gbytes.Say("reset the connections that were still open"))
		})
	}

	It("drains connections on SIGTERM, and resets them on another", func() {
		web.endpoints = []netip.AddrPort{startBackend(l.Pods, lab.Pod(1), 8080).addr}
		u := start("--drain-timeout=5m")
		ends, err := pod.Dial("", web.vip(), 10*time.Second)
		Expect(err).NotTo(HaveOccurred())
		Expect(readName(ends)).Error().NotTo(HaveOccurred())
		stays, err := pod.Dial("", web.vip(), 10*time.Second)
		Expect(err).NotTo(HaveOccurred())
		Expect(readName(stays)).Error().NotTo(HaveOccurred())

		u.Terminate()
		Eventually(u.Err).Should(gbytes.Say("Stopping"))
		unserved(pod, portal, web.vip())
		Expect(ends.Write([]byte("still here"))).Error().NotTo(HaveOccurred())
		Expect(ends.CloseWrite()).To(Succeed())
		Expect(io.ReadAll(ends)).To(Equal([]byte("still here")))

		u.Terminate()
		Expect(stays.SetReadDeadline(time.Now().Add(30 * time.Second))).To(Succeed())
		Expect(stays.Read(make([]byte, 1))).Error().To(reset)
		Eventually(u.Err).WithTimeout(30 * time.Second).Should(gbytes.Say("reset the connections that were still open"))
	})
}
