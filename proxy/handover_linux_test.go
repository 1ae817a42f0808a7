package proxy_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal/fdpass"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("open connections of a replaced Proxy", func() {
	const soon = time.Minute // also on an emulated CPU
	var talks *lab.Talks
	var services []config.Service
	var endpoints []config.Endpoint
	BeforeEach(func() {
		seed := uint64(GinkgoRandomSeed())
		GinkgoWriter.Printf("seed %d (-ginkgo.seed)\n", seed)
		talks = lab.NewTalks(seed)
		DeferCleanup(func() { _ = talks.End() }) // if a spec fails before it calls End
		endpoints = nil
		for range 2 {
			endpoints = append(endpoints, config.Endpoint{Addr: lab.Backend(func(c net.Conn) { talks.Endpoint(c.(*net.TCPConn)) }), Ready: true, Pod: "default/web"})
		}
		port := config.ServicePort{
			ID: config.PortID{Namespace: "default", Service: "web", Family: config.IPv4}, Protocol: config.TCP, Policy: config.DefaultPolicy(),
			VIPs:      []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}},
			Endpoints: endpoints, Cluster: endpoints, Internal: endpoints, External: endpoints,
		}
		services = []config.Service{{Name: types.NamespacedName{Namespace: "default", Name: "web"}, Ports: []config.ServicePort{port}}}
	})
	serve := func() *proxy.Proxy {
		GinkgoHelper()
		p := proxy.New(defaults())
		p.Apply(services)
		return p
	}
	come := func(p *proxy.Proxy, kind lab.Talk) {
		GinkgoHelper()
		c, err := net.Dial("tcp", p.Status()[0].Listeners[0].String())
		Expect(err).NotTo(HaveOccurred())
		talks.Client(kind, c.(*net.TCPConn))
	}
	established := func(p *proxy.Proxy, n int) {
		GinkgoHelper()
		Eventually(func() int64 { return p.Stats().Established }).WithTimeout(soon).Should(BeEquivalentTo(n))
	}
	// ids returns the IDs of the open connections by client address.
	ids := func(p *proxy.Proxy) map[string]string {
		all := map[string]string{}
		for _, r := range p.Trace.Open(func(*conn.Record) bool { return true }) {
			last, _ := r.Established()
			all[r.From.String()] = fmt.Sprint(r.ID, " ", r.Tries(), " ", last.Reason, " ", last.Endpoint, " ", r.Start.UnixNano())
		}
		return all
	}
	// socketsOf returns the sockets that a proxy hands over.
	socketsOf := func(each func(func(handover.Socket) bool)) map[string]*os.File {
		all := map[string]*os.File{}
		for s := range each {
			all[s.Name] = s.File
		}
		return all
	}
	// takeOver returns a proxy that has taken over from p, which stops. It closes drained when p has no connections.
	takeOver := func(p *proxy.Proxy) (successor *proxy.Proxy, drained chan int) {
		GinkgoHelper()
		sockets, more, _, release, err := p.HandOver()
		Expect(err).NotTo(HaveOccurred())
		successor = proxy.New(defaults())
		successor.Inherit(socketsOf(sockets))
		successor.Apply(services)
		successor.InheritRest(socketsOf(more))
		release()
		successor.CloseUnused()
		p.Stop()
		drained = make(chan int, 1)
		go func() { drained <- p.Drain(context.Background()) }()
		return successor, drained
	}

	It("are offered before the drain can end", func() {
		p := serve()
		sockets, _, _, release, err := p.HandOver()
		Expect(err).NotTo(HaveOccurred())
		for _, file := range socketsOf(sockets) {
			defer file.Close()
		}
		drained := make(chan int, 1)
		go func() {
			p.Stop() // waits for release
			drained <- p.Drain(context.Background())
		}()
		release() // with the race detector, it fails if it starts the transfers while Drain waits for them
		Eventually(drained).WithTimeout(soon).Should(Receive(BeZero()))
	})

	It("continue byte for byte with the same IDs over three takeovers", func() {
		p := serve()
		n := 0
		for kind := range 40 {
			come(p, lab.MixOfTalks(kind*5)) // each kind twice
			n++
		}
		established(p, n)
		for range 3 {
			time.Sleep(200 * time.Millisecond) // the clients exchange data
			before := ids(p)
			Expect(before).To(HaveLen(n))
			successor, drained := takeOver(p)
			Eventually(drained).WithTimeout(soon).Should(Receive(BeZero()))
			Eventually(func() int64 { return successor.Stats().Open }).WithTimeout(soon).Should(BeEquivalentTo(n))
			Expect(p.Stats().Open).To(BeZero())
			p = successor
			Eventually(ids).WithArguments(p).WithTimeout(soon).Should(Equal(before)) // the counter changes before the trace
			active := int64(0)
			for _, e := range p.Status()[0].Endpoints {
				active += e.Active.Load()
			}
			Expect(active).To(BeEquivalentTo(n))
			come(p, lab.Chat)
			n++
			established(p, n)
			Expect(slices.Compact(slices.Sorted(maps.Values(ids(p))))).To(HaveLen(n))
			Expect(talks.Err()).NotTo(HaveOccurred())
		}
		moved := talks.Moved()
		Eventually(talks.Moved).WithTimeout(soon).Should(BeNumerically(">", moved+1000))
		Expect(talks.End()).To(Succeed())
		Eventually(func() int64 { return p.Stats().Open }).WithTimeout(soon).Should(BeZero())
		stop(p)
	})

	It("keep the drain deadline of a removed endpoint after a takeover", func() {
		p := serve()
		for range 10 {
			come(p, lab.Chat)
		}
		established(p, 10)
		port := &services[0].Ports[0]
		port.DrainTimeout = 10 * time.Second
		port.Endpoints = port.Endpoints[:1]
		port.Cluster, port.Internal, port.External = port.Endpoints, port.Endpoints, port.Endpoints
		gone := time.Now()
		p.Apply(services)
		time.Sleep(300 * time.Millisecond) // part of the drain timeout
		successor, drained := takeOver(p)
		Eventually(drained).WithTimeout(soon).Should(Receive(BeZero()))
		Expect(successor.Stats().Open).To(BeEquivalentTo(10))
		Eventually(func() int64 { return successor.Stats().Open }).WithTimeout(soon).Should(BeEquivalentTo(5))
		Expect(time.Since(gone)).To(BeNumerically("~", 13*time.Second, 3*time.Second))
		Eventually(talks.Err).WithTimeout(soon).Should(HaveOccurred(), "the connections to the removed endpoint were reset")
		_ = talks.End()
		stop(successor)
	})

	It("are not transferred while clients of their Service are queued", func() {
		services[0].Ports[0].EndpointLimit = 1
		p := serve()
		leaves, err := net.Dial("tcp", p.Status()[0].Listeners[0].String())
		Expect(err).NotTo(HaveOccurred())
		defer leaves.Close()
		established(p, 1)
		come(p, lab.Chat)
		established(p, 2)
		come(p, lab.Chat)
		Eventually(func() int { return p.Status()[0].Cluster.Queued() }).WithTimeout(soon).Should(Equal(1))
		successor, drained := takeOver(p)
		Consistently(drained).WithTimeout(300 * time.Millisecond).ShouldNot(Receive())
		Expect(p.Stats().Open).To(BeEquivalentTo(3))
		leaves.Close()
		Eventually(drained).WithTimeout(soon).Should(Receive(BeZero()))
		Expect(successor.Stats().Open).To(BeEquivalentTo(2))
		Expect(talks.End()).To(Succeed())
		stop(successor)
	})

	// offered returns the connection on which p offers its state, and makes p believe that a successor has taken
	// over.
	offered := func(p *proxy.Proxy) *net.UnixConn {
		GinkgoHelper()
		sockets, _, _, release, err := p.HandOver()
		Expect(err).NotTo(HaveOccurred())
		var offer *net.UnixConn
		for name, file := range socketsOf(sockets) {
			if strings.HasPrefix(name, "open connections") {
				c, err := net.FileConn(file)
				Expect(err).NotTo(HaveOccurred())
				offer = c.(*net.UnixConn)
				DeferCleanup(func() { offer.Close() })
			}
			file.Close()
		}
		release()
		p.Stop()
		return offer
	}
	hear := func(c *net.UnixConn) (string, []int) {
		GinkgoHelper()
		Expect(c.SetDeadline(time.Now().Add(soon))).To(Succeed())
		buf := make([]byte, 1000)
		n, fds, err := fdpass.Receive(c, buf, 253)
		Expect(err).NotTo(HaveOccurred())
		return string(buf[:n]), fds
	}
	DescribeTable("are kept if the successor does not take them",
		func(breaks func(*net.UnixConn)) {
			p := serve()
			for kind := range 20 {
				come(p, lab.MixOfTalks(kind*20))
			}
			established(p, 20)
			breaks(offered(p))
			moved := talks.Moved()
			Eventually(talks.Moved).WithTimeout(soon).Should(BeNumerically(">", moved+100_000))
			Expect(p.Stats().Open).To(BeEquivalentTo(20))
			Expect(talks.End()).To(Succeed())
			Eventually(func() int64 { return p.Stats().Open }).WithTimeout(soon).Should(BeZero())
			stop(p)
		},
		Entry("because it does not know the offer", func(c *net.UnixConn) { c.Close() }),
		Entry("because it exits after the offer", func(c *net.UnixConn) {
			hear(c)
			c.Close()
		}),
		Entry("because it exits before it has received them", func(c *net.UnixConn) {
			hear(c)
			Expect(fdpass.Send(c, []byte("go"))).To(Succeed())
			time.Sleep(100 * time.Millisecond) // data is in transit
			c.Close()
		}),
		Entry("because it exits instead of answering", func(c *net.UnixConn) {
			hear(c)
			Expect(fdpass.Send(c, []byte("go"))).To(Succeed())
			_, fds := hear(c)
			Expect(len(fds)).To(BeNumerically(">", 2))
			c.Close()
			handover.Discard(fds)
		}),
		Entry("because it hangs", func(c *net.UnixConn) {
			hear(c)
			Expect(fdpass.Send(c, []byte("go"))).To(Succeed())
			_, fds := hear(c)
			Expect(c.Read(make([]byte, 1))).Error().To(MatchError(io.EOF)) // the predecessor waits for 10 s
			Expect(fdpass.Send(c, []byte(strings.Repeat("1", 20)))).NotTo(Succeed(), "the answer is too late")
			DeferCleanup(func() { handover.Discard(fds) }) // connections end although the successor holds duplicates
		}),
		Entry("because it refuses them", func(c *net.UnixConn) {
			hear(c)
			Expect(fdpass.Send(c, []byte("go"))).To(Succeed())
			_, fds := hear(c)
			handover.Discard(fds)
			Expect(fdpass.Send(c, []byte(strings.Repeat("0", 20)+"."))).To(Succeed())
		}),
	)

	It("are refused by a version that does not know their fields or Services", func() {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		Expect(err).NotTo(HaveOccurred())
		file := os.NewFile(uintptr(fds[0]), "")
		c, err := net.FileConn(file)
		Expect(err).NotTo(HaveOccurred())
		defer c.Close()
		file.Close()
		p := proxy.New(defaults())
		defer stop(p)
		p.Inherit(map[string]*os.File{"open connections, version 1, after number 41": os.NewFile(uintptr(fds[1]), "")})
		p.Apply(services)
		p.InheritRest(nil)
		old := c.(*net.UnixConn)
		Expect(fdpass.Send(old, []byte("offer"))).To(Succeed())
		word, _ := hear(old)
		Expect(word).To(Equal("go"))
		text, err := handover.Memory("transfer")
		Expect(err).NotTo(HaveOccurred())
		defer text.Close()
		for _, line := range []string{
			`{"Port":{"Namespace":"default","Service":"web","Family":4},"Future":1}`,
			`{"Port":{"Namespace":"default","Service":"web","Family":4},"Pair":{"Ending":"in-the-future"}}`,
			`{"Port":{"Namespace":"default","Service":"other","Family":4}}`,
			`{"Port":{"Namespace":"default","Service":"web","Family":4},"Record":{"Established":1,"Attempts":[{"Reason":"round robin","Result":"later","Seen":""}]}}`,
			`{"Port":{"Namespace":"default","Service":"web","Family":4},"Record":{}}`,
			`nonsense`,
		} {
			fmt.Fprintln(text, line)
		}
		descriptor, err := fdpass.Descriptor(text)
		Expect(err).NotTo(HaveOccurred())
		Expect(fdpass.Send(old, []byte("offer"), append([]int{descriptor}, slices.Repeat([]int{descriptor}, 12)...)...)).To(Succeed())
		word, _ = hear(old)
		Expect(word).To(Equal("000000."))
		Expect(p.Stats().Open).To(BeZero())
		come(p, lab.Idle)
		Eventually(func() map[string]string { return ids(p) }).WithTimeout(soon).Should(HaveLen(1))
		for _, r := range p.Trace.Open(func(*conn.Record) bool { return true }) {
			Expect(r.ID).To(BeEquivalentTo(41 + 100_000 + 1))
		}
		Expect(talks.End()).To(Succeed())
	})
})

var _ = Describe("an inherited socket", func() {
	It("goes to the Service that owns the VIP, even if an earlier Service claims the VIP", func() {
		vip := netip.MustParseAddr("127.77.0.9")
		inherited, err := net.Listen("tcp", vip.String()+":0")
		Expect(err).NotTo(HaveOccurred())
		at := inherited.Addr().(*net.TCPAddr).AddrPort()
		file, err := inherited.(*net.TCPListener).File()
		Expect(err).NotTo(HaveOccurred())
		Expect(inherited.Close()).To(Succeed())
		client, err := net.Dial("tcp", at.String()) // waits to be accepted
		Expect(err).NotTo(HaveOccurred())
		defer client.Close()

		service := func(name string, kind config.VIPKind) config.Service {
			endpoints := []config.Endpoint{{Ready: true, Addr: lab.Backend(func(c net.Conn) {
				_, _ = c.Write([]byte(name))
				c.Close()
			})}}
			return config.Service{Name: types.NamespacedName{Namespace: "default", Name: name}, Ports: []config.ServicePort{{
				ID: config.PortID{Namespace: "default", Service: name, Family: config.IPv4}, Protocol: config.TCP, Policy: config.DefaultPolicy(),
				VIPs:      []config.VIP{{Kind: kind, Addr: vip, Port: at.Port()}},
				Endpoints: endpoints, Cluster: endpoints, Internal: endpoints, External: endpoints,
			}}}
		}
		o := defaults()
		o.Portal = exactPortal{o.Portal}
		p := proxy.New(o)
		DeferCleanup(func() { stop(p) })
		p.Inherit(map[string]*os.File{"tcp " + at.String(): file})
		p.Apply([]config.Service{service("claimant", config.ExternalIP), service("owner", config.ClusterIP)})
		Expect(client.SetDeadline(time.Now().Add(time.Minute))).To(Succeed())
		answer, err := io.ReadAll(client)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(answer)).To(Equal("owner"))
	})
})
