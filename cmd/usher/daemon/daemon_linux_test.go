package daemon

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/portal/modes"
)

// withPortal returns a Config that serves manifests on their cluster IPs.
func withPortal() Config {
	GinkgoHelper()
	c := withoutPortal()
	c.Mode = "address"
	return c
}

// installed returns the rules that portals have installed in the kernel.
func installed() []portal.Comparison {
	GinkgoHelper()
	list, err := modes.List(GinkgoT().Context(), silent())
	Expect(err).NotTo(HaveOccurred())
	return list
}

func silent() *logrus.Logger {
	log := logrus.New()
	log.SetOutput(GinkgoWriter)
	return log
}

// apiServer is an API server with one Service. It answers only after let is closed.
type apiServer struct {
	*httptest.Server
	let     chan struct{}
	watches atomic.Int64 // number of watches so far
}

// newAPIServer returns a server on an address, and a kubeconfig for it. If the address is not loopback, the Service
// has the server's address and port too.
func newAPIServer(endpoint netip.AddrPort, on netip.Addr) (s *apiServer, kubeconfig string) {
	GinkgoHelper()
	l, err := net.Listen("tcp", netip.AddrPortFrom(on, 0).String())
	Expect(err).NotTo(HaveOccurred())
	spec := corev1.ServiceSpec{ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"}, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}}
	if !on.IsLoopback() {
		spec.ExternalIPs, spec.Ports[0].Port = []string{on.String()}, int32(l.Addr().(*net.TCPAddr).Port)
	}
	port, protocol := int32(endpoint.Port()), corev1.ProtocolTCP
	web := metav1.ObjectMeta{Namespace: "default", Name: "web", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}
	meta := metav1.ListMeta{ResourceVersion: "1"}
	lists := map[string]any{
		"/api/v1/services": corev1.ServiceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}, ListMeta: meta,
			Items: []corev1.Service{{ObjectMeta: web, Spec: spec}}},
		"/apis/discovery.k8s.io/v1/endpointslices": discoveryv1.EndpointSliceList{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSliceList"}, ListMeta: meta,
			Items: []discoveryv1.EndpointSlice{{ObjectMeta: web, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port, Protocol: &protocol}},
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{endpoint.Addr().String()}}}}}},
		"/api/v1/nodes": corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: meta,
			Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}}}},
		"/apis/networking.k8s.io/v1/servicecidrs": networkingv1.ServiceCIDRList{TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDRList"}, ListMeta: meta,
			Items: []networkingv1.ServiceCIDR{{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "fd96::/112"}}}}},
	}
	s = &apiServer{let: make(chan struct{})}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-s.let:
		case <-r.Context().Done():
			return
		}
		list, known := lists[r.URL.Path]
		w.Header().Set("Content-Type", "application/json")
		switch {
		case !known:
			w.WriteHeader(http.StatusNotFound)
		case r.URL.Query().Get("sendInitialEvents") != "": // like an older API server
			w.WriteHeader(http.StatusUnprocessableEntity)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
		case r.URL.Query().Get("watch") != "":
			s.watches.Add(1)
			w.(http.Flusher).Flush()
			<-r.Context().Done() // nothing changes
		default:
			_ = json.NewEncoder(w).Encode(list)
		}
	}))
	s.Listener.Close()
	s.Listener = l
	s.Start()
	DeferCleanup(func() { s.CloseClientConnections(); s.Close() })
	return s, kubeconfigOf(s.URL)
}

var _ = Describe("a daemon with a portal", func() {
	BeforeEach(func() {
		ownNamespace()
		DeferCleanup(func() { Expect(modes.Cleanup(context.Background(), silent())).Error().NotTo(HaveOccurred()) })
	})

	It("installs no rules and is not ready before the initial sync", func() {
		api, kubeconfig := newAPIServer(netip.MustParseAddrPort("10.244.0.11:80"), netip.MustParseAddr("127.0.0.1")) // no client connects to the endpoint
		c := withPortal()
		c.Manifests, c.NodeName, c.Cluster.Kubeconfig = nil, "worker-1", kubeconfig
		c.Proxy.CheckInterval = 100 * time.Millisecond
		r := begin(c)
		health := func() int { return healthz(c.HealthzAddress) }
		Eventually(health).WithTimeout(patience).Should(Equal(http.StatusServiceUnavailable))
		Consistently(health).WithTimeout(time.Second).Should(Equal(http.StatusServiceUnavailable), "checks of the portal do not replace the initial sync")
		Expect(installed()).To(BeEmpty())
		Expect(r.ready).NotTo(Receive())
		close(api.let)
		Eventually(r.ready).WithTimeout(patience).Should(Receive())
		Expect(healthz(c.HealthzAddress)).To(Equal(http.StatusOK))
		Expect(installed()).NotTo(BeEmpty())
		status, known := r.APIServer()
		Expect(known).To(BeTrue())
		Expect(status.Connected).To(BeTrue())
	})

	DescribeTable("keeps the rules of an earlier process until the initial sync", func(mode string) {
		c := withPortal()
		c.Mode = mode
		first, _ := serve(c)
		first.signals <- syscall.SIGTERM
		Eventually(first.ended).WithTimeout(patience).Should(Receive(BeNil()))
		before := installed()
		Expect(before).NotTo(BeEmpty())

		api, kubeconfig := newAPIServer(netip.MustParseAddrPort("10.244.0.11:80"), netip.MustParseAddr("127.0.0.1"))
		c.Manifests, c.NodeName, c.Cluster.Kubeconfig = nil, "worker-1", kubeconfig
		c.Proxy.CheckInterval = 100 * time.Millisecond
		r := begin(c)
		Consistently(installed).WithTimeout(time.Second).Should(Equal(before))
		close(api.let)
		Eventually(r.ready).WithTimeout(patience).Should(Receive())
	},
		Entry(nil, "address"),
		Entry(nil, "nftables"),
	)

	It("returns 503 on /healthz if its node is unknown to the API server", func() {
		api, kubeconfig := newAPIServer(netip.MustParseAddrPort("10.244.0.11:80"), netip.MustParseAddr("127.0.0.1"))
		close(api.let)
		c := withPortal()
		c.Manifests, c.NodeName, c.Cluster.Kubeconfig, c.AdminAddress = nil, "worker-2", kubeconfig, free()
		r, _ := serve(c)
		Expect(healthz(c.HealthzAddress)).To(Equal(http.StatusServiceUnavailable))
		Expect(r.health.Serving()).To(BeTrue())
		Expect(r.said).To(gbytes.Say("No Node object has this name"))
	})

	DescribeTable("reaches the API server although a Service has its address as external IP", func(mode string) {
		Expect(exec.Command("ip", "addr", "replace", "192.0.2.77/32", "dev", "lo").Run()).To(Succeed())
		api, kubeconfig := newAPIServer(netip.MustParseAddrPort("10.244.0.11:80"), netip.MustParseAddr("192.0.2.77"))
		close(api.let)
		c := withPortal()
		c.Manifests, c.NodeName, c.Cluster.Kubeconfig, c.Mode = nil, "worker-1", kubeconfig, mode
		c.Proxy.ClaimNodeAddresses = true // the API server runs on this node
		r := begin(c)
		Eventually(r.ready).WithTimeout(patience).Should(Receive())
		const kinds = 4 // Services, EndpointSlices, the Node, ServiceCIDRs
		Eventually(api.watches.Load).WithTimeout(patience).Should(BeNumerically(">=", kinds))
		before := api.watches.Load()
		api.CloseClientConnections()
		Eventually(api.watches.Load).WithTimeout(patience).Should(BeNumerically(">=", before+kinds))
	},
		Entry("iptables", "iptables"),
		Entry("nftables", "nftables"),
	)

	DescribeTable("rejects connections to unused addresses in the service CIDRs of the API server", func(mode string, unused ...string) {
		Expect(exec.Command("sh", "-c", `ip link add wire type veth peer name end && ip link set wire up && ip link set end up &&
			ip addr add 192.0.2.1/24 dev wire && ip addr add 2001:db8::1/64 dev wire nodad &&
			ip neigh add 192.0.2.2 lladdr 2:0:0:0:0:2 dev wire && ip neigh add 2001:db8::2 lladdr 2:0:0:0:0:2 dev wire &&
			ip route add default via 192.0.2.2 && ip -6 route add default via 2001:db8::2`).Run()).To(Succeed())
		DeferCleanup(func() { Expect(exec.Command("ip", "link", "del", "wire").Run()).To(Succeed()) })
		api, kubeconfig := newAPIServer(netip.MustParseAddrPort("10.244.0.11:80"), netip.MustParseAddr("127.0.0.1"))
		close(api.let)
		c := withPortal()
		c.Manifests, c.NodeName, c.Cluster.Kubeconfig, c.Mode = nil, "worker-1", kubeconfig, mode
		dial := func(addr string) func() error {
			return func() error { _, err := net.DialTimeout("tcp", addr, 2*time.Second); return err }
		}
		silence := MatchError(ContainSubstring("i/o timeout"))
		for _, addr := range unused {
			Expect(dial(addr)()).To(silence, addr)
		}
		r := begin(c)
		Eventually(r.ready).WithTimeout(patience).Should(Receive())
		for _, addr := range unused {
			Eventually(dial(addr)).WithTimeout(patience).Should(And(HaveOccurred(), Not(silence)), addr)
		}
		Expect(dial("10.97.0.1:80")()).To(silence, "outside the service CIDRs")
		r.signals <- os.Interrupt
		Eventually(r.ended).WithTimeout(patience).Should(Receive(BeNil()))
		Expect(dial(unused[0])()).To(silence)
	},
		Entry("iptables", "iptables", "10.96.7.7:80"),
		Entry("nftables", "nftables", "10.96.7.7:80"),
		Entry("address", "address", "10.96.7.7:80", "[fd96::77]:80"),
	)

	It("keeps the rules for a successor on SIGTERM", func() {
		r, _ := serve(withPortal())
		connect(vip).Close()
		r.signals <- syscall.SIGTERM
		Eventually(r.ended).WithTimeout(patience).Should(Receive(BeNil()))
		Expect(installed()).NotTo(BeEmpty())
		serve(withPortal())
		connect(vip)
	})

	It("keeps the rules if its context is canceled", func() {
		r, _ := serve(withPortal())
		Expect(installed()).NotTo(BeEmpty())
		r.cancel()
		Eventually(r.ended).WithTimeout(patience).Should(Receive(BeNil()))
		Expect(installed()).NotTo(BeEmpty())
	})

	It("removes the rules on SIGINT, after the last connection has closed", func() {
		c := withPortal()
		r, _ := serve(c)
		open := connect(vip)
		r.signals <- os.Interrupt
		Eventually(func() int { return healthz(c.HealthzAddress) }).WithTimeout(patience).Should(Equal(http.StatusServiceUnavailable))
		Expect(say(open)).To(Succeed())
		Expect(installed()).NotTo(BeEmpty(), "the connection still needs the rules")
		open.Close()
		Eventually(r.ended).WithTimeout(patience).Should(Receive(BeNil()))
		Expect(installed()).To(BeEmpty())
	})

	DescribeTable("removes the rules on SIGTERM if RemoveRules is set, redirects before connections close", func(mode string) {
		c := withPortal()
		c.Mode, c.RemoveRules = mode, true
		r, _ := serve(c)
		open := connect(vip)
		r.signals <- syscall.SIGTERM
		if mode != "address" {
			Eventually(installed).WithTimeout(patience).Should(BeEmpty())
		}
		Expect(say(open)).To(Succeed())
		Expect(r.ended).NotTo(Receive())
		open.Close()
		Eventually(r.ended).WithTimeout(patience).Should(Receive(BeNil()))
		Expect(installed()).To(BeEmpty())
	},
		Entry("nftables", "nftables"),
		Entry("iptables", "iptables"),
		Entry("address", "address"),
	)

	It("installs no rules and releases the lock if a server cannot listen", func() {
		c := withPortal()
		c.SOCKS = socksAt(taken())
		r := begin(c)
		Eventually(r.ended).WithTimeout(patience).Should(Receive(MatchError(HavePrefix("--socks: "))))
		Expect(installed()).To(BeEmpty())
		lock, err := Lock(silent(), nil)
		Expect(err).NotTo(HaveOccurred())
		lock.Release()
	})

	It("fails to start alongside another daemon, which keeps serving", func() {
		serve(withPortal())
		r := begin(withPortal())
		var err error
		Eventually(r.ended).WithTimeout(patience).Should(Receive(&err))
		Expect(err).To(MatchError(handover.ErrLocked))
		Expect(err).To(MatchError(HaveSuffix("; stop it, replace it with 'usher run --take-over', or set --portal=none")))
		connect(vip)
	})

	Describe("for a demo", func() {
		demo := func() Config {
			GinkgoHelper()
			c := withPortal()
			c.Demo = func(next http.Handler) http.Handler {
				mux := http.NewServeMux()
				mux.Handle("/", next)
				mux.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
				return mux
			}
			c.AdminAddress = "127.0.0.1:0"
			return c
		}

		It("removes its rules on SIGTERM, and serves the handlers added to its API", func() {
			r, now := serve(demo())
			connect(vip).Close()
			res, err := http.Get("http://" + now.AdminAddress + "/broken")
			Expect(err).NotTo(HaveOccurred())
			res.Body.Close()
			Expect(res.StatusCode).To(Equal(http.StatusTeapot))
			r.signals <- syscall.SIGTERM
			Eventually(r.ended).WithTimeout(patience).Should(Receive(BeNil()))
			Expect(installed()).To(BeEmpty())
		})

		It("uses no portal alongside a running daemon, and keeps that daemon's rules", func() {
			serve(withPortal())
			before := installed()
			c := demo()
			c.Mode = modes.Auto
			r, now := serve(c)
			Expect(now.Proxy.Portal.Mode()).To(Equal("none"))
			connect(listener(now)).Close()
			r.signals <- os.Interrupt
			Eventually(r.ended).WithTimeout(patience).Should(Receive(BeNil()))
			Expect(installed()).To(Equal(before))
			connect(vip)
		})

		It("does not hand over: a daemon that takes over waits until it exits", func() {
			first, _ := serve(demo())
			c := withPortal()
			c.TakeOver = true
			second := begin(c)
			Eventually(second.said).WithTimeout(patience).Should(gbytes.Say("Manifests read"))
			Consistently(second.ready).ShouldNot(Receive())
			connect(vip).Close()
			first.signals <- syscall.SIGTERM
			Eventually(first.ended).WithTimeout(patience).Should(Receive(BeNil()))
			Eventually(second.ready).WithTimeout(patience).Should(Receive())
			connect(vip)
		})
	})

	Describe("that takes over", func() {
		takeOver := func(from Config) Config {
			from.TakeOver = true
			return from
		}

		It("inherits the sockets, rules, addresses and open connections of the first", func() {
			c := withPortal()
			c.AdminAddress, c.HardFail = free(), true
			names := free()
			c.Names = namesAt(names)
			first, firstNow := serve(c)
			open := connect(vip)
			before := installed()

			c.Names = namesAt(names)
			second, secondNow := serve(takeOver(c))
			Eventually(first.said).WithTimeout(patience).Should(gbytes.Say("Another usher instance has taken over; open connections move to it"))
			Expect(installed()).To(Equal(before))
			Eventually(first.ended).WithTimeout(patience).Should(Receive(BeNil()), "no connection is left")
			Expect(say(open)).To(Succeed())
			Expect(firstNow.Proxy.Stats().Open).To(BeZero())
			connect(vip)
			Expect(secondNow.Proxy.Stats().Open).To(BeEquivalentTo(2))
			Eventually(func() string { return string(second.said.Contents()) }).WithTimeout(patience).Should(And(
				ContainSubstring("DNS server for Service names started"),
				ContainSubstring("Listening after retries\" flag=--healthz-address"),
				ContainSubstring("Listening after retries\" flag=--admin-address")))

			Expect(say(open)).To(Succeed())
			Expect(installed()).To(Equal(before))
			Expect(healthz(c.HealthzAddress)).To(Equal(http.StatusOK))
			connect(vip)
		})

		It("starts normally if there is no other daemon", func() {
			serve(takeOver(withPortal()))
			connect(vip)
		})

		It("removes the rules on SIGINT, and the first does not", func() {
			first, _ := serve(withPortal())
			open := connect(vip)
			second, _ := serve(takeOver(withPortal()))
			first.signals <- os.Interrupt
			open.Close()
			Eventually(first.ended).WithTimeout(patience).Should(Receive(BeNil()))
			Expect(first.said).To(gbytes.Say("Stopped.*owned by the instance that took over"))
			Expect(installed()).NotTo(BeEmpty())
			second.signals <- os.Interrupt
			Eventually(second.ended).WithTimeout(patience).Should(Receive(BeNil()))
			Expect(second.said).To(gbytes.Say("Stopped.*removed"))
			Expect(installed()).To(BeEmpty())
		})

		It("makes the first daemon, in a Pod, wait for a signal before it exits", func() {
			GinkgoT().Setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
			first, _ := serve(withPortal())
			serve(takeOver(withPortal()))
			Eventually(first.said).WithTimeout(patience).Should(gbytes.Say("Stopped"))
			Consistently(first.ended).ShouldNot(Receive())
			first.signals <- syscall.SIGTERM
			Eventually(first.ended).WithTimeout(patience).Should(Receive(BeNil()))
		})

		It("makes the first daemon, in a Pod, exit if the second one ends, so that the kubelet restarts it", func() {
			GinkgoT().Setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
			first, _ := serve(withPortal())
			second, _ := serve(takeOver(withPortal()))
			Eventually(first.said).WithTimeout(patience).Should(gbytes.Say("Stopped"))
			second.signals <- os.Interrupt
			Eventually(second.ended).WithTimeout(patience).Should(Receive(BeNil()))
			Eventually(first.ended).WithTimeout(patience).Should(Receive(BeNil()))
			Expect(first.said).To(gbytes.Say("that took over has ended"))
			serve(takeOver(withPortal()))
			connect(vip)
		})

		It("does not take over if its source fails", func() {
			serve(withPortal())
			c := takeOver(withPortal())
			c.Manifests = []string{"/no/such/file"}
			r := begin(c)
			Eventually(r.ended).WithTimeout(patience).Should(Receive(MatchError(HavePrefix("cannot continue: manifest"))))
			connect(vip)
		})
	})
})
