package test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("clients that connect while all endpoints are at their connection limit", func() {
	for _, portal := range []string{"iptables", "nftables", "address"} {
		for _, six := range []bool{false, true} {
			family := map[bool]string{false: "IPv4", true: "IPv6"}[six]
			It("wait in the queue in order, with the portal "+portal+", "+family, func() { queueSpec(portal, six) })
		}
	}
})

// few is an endpoint that sends its address and then waits until its client closes the connection. It counts its open
// connections, and decrements the count before it closes its side.
type few struct {
	addr     netip.AddrPort
	listener net.Listener

	mu   sync.Mutex
	open map[net.Conn]bool
	most int
}

func startFew(ns *lab.Namespace, addr netip.Addr) *few {
	GinkgoHelper()
	f := &few{addr: netip.AddrPortFrom(addr, 8080), open: map[net.Conn]bool{}}
	f.listener = ns.Listen(f.addr.String())
	lab.Serve(f.listener, func(c net.Conn) {
		f.mu.Lock()
		f.open[c] = true
		f.most = max(f.most, len(f.open))
		f.mu.Unlock()
		fmt.Fprintln(c, f.addr)
		_, _ = io.Copy(io.Discard, c)
		f.mu.Lock()
		delete(f.open, c)
		f.mu.Unlock()
	})
	return f
}

// serves returns the number of clients that the endpoint has.
func (f *few) serves() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.open)
}

// die closes the endpoint, resets its open connections and returns their number.
func (f *few) die() int {
	f.listener.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.open {
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	return len(f.open)
}

func (f *few) mostOpen() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most
}

func queueSpec(portal string, six bool) {
	const clients, places, atOnce, soon = 1000, 10, 10, 20 * time.Second
	if portal != "address" {
		missing(map[string]string{"iptables": "iptables", "nftables": "nft"}[portal])
	}
	l := lab.New()
	web := service{name: "web", clusterIP: clusterIP, port: 80, metadata: fmt.Sprintf(`, annotations: {usher.io/max-connections-per-endpoint: "%d", usher.io/queue-timeout: 5m}`, places)}
	pod := lab.Pod
	if six {
		pod, web.clusterIP = lab.Pod6, "fd00:10:96::10"
	}
	var endpoints []*few
	add := func(n int) {
		endpoints = append(endpoints, startFew(l.Pods, pod(n)))
		web.endpoints = append(web.endpoints, endpoints[len(endpoints)-1].addr)
	}
	add(1)
	add(2)
	add(3)
	dir := manifestsDir()
	web.write(dir)
	u := startUsher(l.Node, dir, "--portal="+portal, "--trace")
	dialer, node := l.Pods.NewDialer(20), l.Node.NewDialer(1)
	inLine := sample(node, `usher_service_queue_length{namespace="default",service="web"}`)

	// client is a client of a batch. Later batches have greater numbers; clients with the same number have no order.
	type client struct {
		net.Conn
		number int
		err    error
	}
	served := make(chan client, clients)
	var waiting []int // numbers
	for n := range clients / atOnce {
		for range atOnce {
			go func() {
				conn, err := dialer.Dial("", web.vip(), soon)
				if err == nil {
					_, err = bufio.NewReader(conn).ReadString('\n')
				}
				served <- client{conn, n, err}
			}()
			waiting = append(waiting, n)
		}
		Eventually(inLine).WithTimeout(soon).WithPolling(20 * time.Millisecond).Should(BeEquivalentTo(max(0, len(waiting)-3*places)))
		Eventually(func() (served int) {
			for _, e := range endpoints {
				served += e.serves()
			}
			return served
		}).WithTimeout(soon).WithPolling(time.Millisecond).Should(Equal(min(len(waiting), 3*places)))
	}
	var open []client
	// next checks that the next clients in the queue are served; so is their number.
	next := func(so int) {
		GinkgoHelper()
		last := waiting[so-1]
		for range so {
			var c client
			Eventually(served).WithTimeout(soon).Should(Receive(&c))
			Expect(c.err).NotTo(HaveOccurred())
			Expect(c.number).To(BeNumerically("<=", last), "served out of order")
			i := slices.Index(waiting, c.number)
			waiting = slices.Delete(waiting, i, i+1)
			open = append(open, c)
		}
	}
	end := func() {
		open[0].Close()
		open = open[1:]
	}
	next(3 * places)
	for range 300 {
		end()
		next(1)
	}

	By("closing an endpoint")
	dead := endpoints[1].addr.String()
	Expect(endpoints[1].die()).To(Equal(places))
	Eventually(u.Out).WithTimeout(soon).Should(gbytes.Say(`→ ` + regexp.QuoteMeta(dead) + ` \(first in queue\): connection refused`))
	isReset := func(c client) bool {
		Expect(c.SetReadDeadline(time.Now().Add(time.Millisecond))).To(Succeed())
		_, err := c.Read(make([]byte, 1))
		return errors.Is(err, syscall.ECONNRESET)
	}
	Eventually(func() int {
		open = slices.DeleteFunc(open, isReset)
		return len(open)
	}).WithTimeout(soon).Should(Equal(2 * places))
	for range 100 {
		end()
		next(1)
	}

	By("adding an endpoint")
	web.endpoints = slices.Delete(web.endpoints, 1, 2)
	add(4)
	web.write(dir)
	next(places)

	for len(waiting) > 0 {
		end()
		next(1)
	}
	for _, e := range endpoints {
		Expect(e.mostOpen()).To(Equal(places), "%s", e.addr)
	}
	Expect(inLine()).To(BeZero())
	out, _, _ := askUsher(l.Node, "get", "endpoints", "web")
	Expect(out).To(ContainSubstring("10/10"))

	By("resetting a client after its queue timeout")
	web.metadata = fmt.Sprintf(`, annotations: {usher.io/max-connections-per-endpoint: "%d", usher.io/queue-timeout: 1s}`, places)
	web.write(dir)
	Eventually(func(g Gomega) {
		out, _, _ := askUsher(l.Node, "get", "services", "-o", "wide")
		g.Expect(out).To(ContainSubstring("max-connections-per-endpoint=10, queue-timeout=1s"))
	}).WithTimeout(soon).Should(Succeed())
	_, err := ask(dialer, web.vip())
	Expect(errors.Is(err, syscall.ECONNRESET)).To(BeTrue(), "%v", err)
	Eventually(u.Out).WithTimeout(soon).Should(gbytes.Say(`waited in the queue for [1-9]\.\d s`))
	Eventually(u.Out).WithTimeout(soon).Should(gbytes.Say(`queue-timeout \(no endpoint had a free slot in time\)`))
	runtime.KeepAlive(open) // unreferenced connections would be closed
}
