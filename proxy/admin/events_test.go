package admin_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/admin"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/conn"
)

var _ = Describe("a subscriber of events", func() {
	var n *node
	BeforeEach(func() {
		n = newNode()
		n.proxy.Apply([]config.Service{service("web", "10.96.0.1", answering())})
	})

	// steps adds count steps of one connection to the trace.
	steps := func(count int) {
		life := &conn.Record{ID: 1 << 40, Port: &conn.Port{Observers: []conn.Observer{n.proxy.Trace}}, Start: time.Now()}
		for range count {
			life.Delayed(conn.Waiting, time.Now(), time.Second)
		}
	}

	// follow begins a stream. The returned function returns its next line with that prefix.
	follow := func(query string) func(prefix string) string {
		GinkgoHelper()
		res, err := http.Get(n.url + api.Prefix + "/events?" + query)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(res.Body.Close)
		lines := bufio.NewScanner(res.Body)
		return func(prefix string) string {
			GinkgoHelper()
			for lines.Scan() {
				if strings.HasPrefix(lines.Text(), prefix) {
					return lines.Text()
				}
			}
			Fail("the stream has ended")
			return ""
		}
	}

	It("gets changes as they happen, also after steps", func() {
		next := follow("kind=changes")
		Expect(next("event: ")).To(Equal("event: hello"))
		for range 3 {
			n.client("web")
			time.Sleep(100 * time.Millisecond) // the stream sees the steps alone
		}
		n.proxy.Apply([]config.Service{service("api", "10.96.0.2", answering())})
		Expect(next("event: ")).To(Equal("event: change"))
		Expect(next("data: ")).To(ContainSubstring(`"kind":"service-added"`))
	})

	It("gets steps as they happen", func() {
		next := follow("kind=accepted")
		Expect(next("event: ")).To(Equal("event: hello"))
		n.client("web")
		Expect(next("event: ")).To(Equal("event: step"))
		Expect(next("data: ")).To(ContainSubstring(`"kind":"accepted"`))
	})

	It("gets the number of events that it missed because the trace had dropped them", func() {
		first := n.subscribe("follow=false", "").events[0]
		steps(1500) // the trace keeps 1000
		s := n.subscribe("follow=false", first.ID)
		Expect(s.missed).To(Equal([]uint64{500}))
		Expect(s.events).To(HaveLen(1000))
	})

	It("of changes does not count steps as missed", func() {
		changes := n.subscribe("follow=false&kind=changes", "").events
		Expect(changes).NotTo(BeEmpty())
		steps(1500)
		Expect(n.subscribe("follow=false&kind=changes", changes[len(changes)-1].ID).missed).To(BeEmpty())
		n.proxy.Apply([]config.Service{service("api", "10.96.0.2", answering())})
		later := n.subscribe("follow=false&kind=changes", changes[len(changes)-1].ID)
		Expect(later.missed).To(BeEmpty())
		Expect(later.events).NotTo(BeEmpty())
	})

	It("misses no events that are not selected if it continues where its stream ended", func() {
		steps(1500) // the trace keeps 1000
		before := n.subscribe("follow=false&outcome=failed", "")
		Expect(before.events).To(BeEmpty())
		steps(3)
		after := n.subscribe("follow=false", before.position)
		Expect(after.missed).To(BeEmpty())
		Expect(after.events).To(HaveLen(3))
	})

	It("gets heartbeats while only other Services have events", func() {
		DeferCleanup(admin.SetHeartbeat(50 * time.Millisecond))
		busy, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for tick := time.NewTicker(5 * time.Millisecond); ; {
				select {
				case <-tick.C:
					steps(1)
				case <-busy:
					return
				}
			}
		}()
		DeferCleanup(func() { close(busy); <-stopped })
		res, err := http.Get(n.url + api.Prefix + "/events?service=default/quiet")
		Expect(err).NotTo(HaveOccurred())
		defer res.Body.Close()
		heard := make(chan struct{})
		go func() {
			for lines := bufio.NewScanner(res.Body); lines.Scan(); {
				if lines.Text() == ": heartbeat" {
					close(heard)
					return
				}
			}
		}()
		Eventually(heard).WithTimeout(30 * time.Second).Should(BeClosed())
	})

	It("starts at the first event if its last event ID is another process's", func() {
		Expect(n.subscribe("follow=false", "other-7").kinds()).To(Equal([]string{"service-added"}))
	})

	It("can request only the headers", func() {
		res, err := http.Head(n.url + api.Prefix + "/events")
		Expect(err).NotTo(HaveOccurred())
		Expect(res.StatusCode).To(Equal(200))
	})

	Describe("that never reads, one of 1,000,", func() {
		It("uses bounded memory and slows neither the trace nor other requests", func() {
			needFiles(2200) // both ends are in this process
			heap := func() int64 {
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return int64(m.HeapAlloc + m.StackInuse)
			}
			add := func() time.Duration {
				began := time.Now()
				steps(20000)
				return time.Since(began)
			}
			add()
			before, alone := heap(), add()
			refused := 0
			for range 1000 {
				c, err := net.Dial("tcp", n.addr)
				Expect(err).NotTo(HaveOccurred())
				DeferCleanup(func() { c.Close() })
				fmt.Fprintf(c, "GET %s/events?history=true&rate=100000 HTTP/1.1\r\nHost: localhost\r\n\r\n", api.Prefix)
				// The client reads only the status.
				status := make([]byte, len("HTTP/1.1 200"))
				_, err = c.Read(status)
				Expect(err).NotTo(HaveOccurred())
				if strings.HasSuffix(string(status), "503") {
					refused++
				}
			}
			// Slow ones may have been closed already, which makes room for others.
			Expect(refused).To(And(BeNumerically("<=", 1000-admin.MaxSubscribers), BeNumerically(">=", 500)))
			var s api.Status
			Expect(n.get("/status", &s)).To(Equal(200))
			Expect(s.Subscribers.Now).To(And(BeNumerically("<=", admin.MaxSubscribers), BeNumerically(">", 0)))
			var more int64
			Eventually(func() int64 {
				add() // until no socket accepts more data
				more = heap() - before
				return more
			}, "50s").Should(BeNumerically("<", 16<<20))
			var among time.Duration
			Eventually(func() time.Duration {
				among = add()
				return among
			}, "50s").Should(BeNumerically("<", 10*alone+10*time.Millisecond), "the trace does not wait for subscribers that do not read")
			GinkgoWriter.Printf("20,000 steps: %v alone, %v among 1,000 subscribers; memory %+d kB\n", alone, among, more/1024)
			Expect(n.get("/status", &s)).To(Equal(200))
		})
	})
})
