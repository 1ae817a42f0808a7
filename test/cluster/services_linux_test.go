package cluster

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("a Service", Ordered, ContinueOnFailure, func() {
	var (
		c    *cluster
		u    *usher
		idle int // the number of usher's listeners without Services of these specs
	)
	BeforeAll(func() {
		c = newCluster()
		u = c.usher()
		idle = u.listeners()
	})
	AfterEach(func() { c.forget() })

	// notProxied checks that a Service opens no listener, once a later Service is served.
	notProxied := func(create func()) {
		GinkgoHelper()
		Eventually(u.listeners).WithTimeout(soon).Should(Equal(idle))
		create()
		svc := c.service("later")
		pod := c.startPod("later", 20, here)
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(pod.addr))
		Expect(u.listeners()).To(Equal(idle+1), "one more listener, for the later Service")
	}

	It("named default/kubernetes is served, with the slice that the API server writes", func() {
		for _, client := range []*lab.Dialer{c.pod, c.node} {
			conn, err := client.Dial("", "10.96.0.1:443", soon)
			Expect(err).NotTo(HaveOccurred())
			conn.Close()
		}
	})

	It("of type ClusterIP is served from Pods and the node, by all endpoints", func() {
		svc := c.service("web")
		one, two := c.startPod("web", 1, here), c.startPod("web", 2, elsewhere)
		c.awaitReady("web", one)
		c.awaitReady("web", two)
		for _, client := range []*lab.Dialer{c.pod, c.node} {
			seen := map[netip.AddrPort]int{}
			Eventually(func() (map[netip.AddrPort]int, error) {
				endpoint, err := ask(client, vip(svc))
				seen[endpoint]++
				return seen, err
			}).WithTimeout(soon).Should(And(HaveKey(one.addr), HaveKey(two.addr)))
		}
	})

	It("can have endpoints on the node's address (hostNetwork), and endpoints as clients", func() {
		svc := c.service("web", noSelector)
		host := serve(c.Node, netip.AddrPortFrom(netip.MustParseAddr(lab.NodeOut4), 8080))
		pod := serve(c.Pods, netip.AddrPortFrom(lab.Pod(1), 8080))
		c.write(c.slice("web", "a", endpoint(host.addr.Addr()), endpoint(lab.Pod(1))))
		for _, from := range []string{"", lab.Pod(1).String()} {
			seen := map[netip.AddrPort]bool{}
			Eventually(func() (map[netip.AddrPort]bool, error) {
				endpoint, err := askFrom(c.pod, from, vip(svc))
				seen[endpoint] = true
				return seen, err
			}).WithTimeout(soon).Should(And(HaveKey(host.addr), HaveKey(pod.addr)))
		}
	})

	It("of type ExternalName is not proxied", func() {
		notProxied(func() {
			c.service("name", func(s *corev1.Service) {
				s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
			})
		})
	})

	It("with clusterIP None (headless) is not proxied", func() {
		notProxied(func() {
			c.service("headless", func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone })
			c.startPod("headless", 21, here)
			Eventually(func() int { return len(c.slices("headless")) }).WithTimeout(soon).Should(Equal(1))
		})
	})

	It("that becomes ExternalName is no longer proxied", func() {
		svc := c.service("web")
		pod := c.startPod("web", 1, here)
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(pod.addr))
		c.update("web", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName, s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ServiceTypeExternalName, "example.com", "", nil
		})
		Eventually(failure(c.pod, vip(svc))).WithTimeout(soon).Should(HaveOccurred())
	})

	Describe("with the label service.kubernetes.io/service-proxy-name", func() {
		It("is not proxied", func() {
			notProxied(func() {
				c.service("foreign", labelled("somebody"))
				c.startPod("foreign", 21, here)
			})
		})

		It("is served again once the label is removed", func() {
			svc := c.service("web")
			pod := c.startPod("web", 1, here)
			Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(pod.addr))
			c.update("web", labelled("somebody"))
			Eventually(failure(c.pod, vip(svc))).WithTimeout(soon).Should(HaveOccurred())
			c.update("web", func(s *corev1.Service) { s.Labels = nil })
			Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(pod.addr))
		})
	})

	It("without a selector uses manually created slices", func() {
		svc := c.service("web", noSelector)
		server := serve(c.Pods, netip.AddrPortFrom(lab.Pod(1), 8080))
		c.write(c.slice("web", "by-hand", endpoint(lab.Pod(1))))
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(server.addr))
	})

	It("without a selector uses an Endpoints object, which the controller mirrors", func() {
		svc := c.service("mirrored", noSelector)
		server := serve(c.Pods, netip.AddrPortFrom(lab.Pod(1), 8080))
		c.writeEndpoints("mirrored", lab.Pod(1))
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(server.addr))
	})

	It("can have ports with shared numbers, named and differing target ports, and appProtocol", func() {
		h2c := "kubernetes.io/h2c"
		svc := c.service("dns", func(s *corev1.Service) {
			s.Spec.Ports = []corev1.ServicePort{
				{Name: "dns-tcp", Port: 53, TargetPort: intstr.FromInt32(8080), Protocol: corev1.ProtocolTCP},
				{Name: "dns", Port: 53, TargetPort: intstr.FromInt32(8080), Protocol: corev1.ProtocolUDP},
				{Name: "web", Port: 80, TargetPort: intstr.FromString("http"), AppProtocol: &h2c},
				{Name: "metrics", Port: 9153, TargetPort: intstr.FromInt32(9153)},
			}
		})
		pod := c.startPod("dns", 1, here)
		other := c.startPod("dns", 2, here, func(p *corev1.Pod) { p.Spec.Containers[0].Ports[0].ContainerPort = 9090 })
		http := serve(c.Pods, netip.AddrPortFrom(lab.Pod(2), 9090))
		metrics := serve(c.Pods, netip.AddrPortFrom(lab.Pod(1), 9153))
		other2 := serve(c.Pods, netip.AddrPortFrom(lab.Pod(2), 9153))
		for port, want := range map[int32][]netip.AddrPort{53: {pod.addr, other.addr}, 80: {pod.addr, http.addr}, 9153: {metrics.addr, other2.addr}} {
			seen := map[netip.AddrPort]bool{}
			Eventually(func() map[netip.AddrPort]bool {
				if endpoint, err := ask(c.pod, vipOf(svc, port)); err == nil {
					seen[endpoint] = true
				}
				return seen
			}).WithTimeout(soon).Should(And(HaveLen(2), HaveKey(want[0]), HaveKey(want[1])), "port %d", port)
		}
	})

	It("with two families is served in each from slices of its addressType", func() {
		both := corev1.IPFamilyPolicyRequireDualStack
		svc := c.service("web", func(s *corev1.Service) { s.Spec.IPFamilyPolicy = &both })
		Expect(svc.Spec.ClusterIPs).To(HaveLen(2))
		pod := c.startPod("web", 1, here)
		for _, client := range []*lab.Dialer{c.pod, c.node} {
			Eventually(answers(client, at(svc.Spec.ClusterIPs[0], 80))).WithTimeout(soon).Should(Equal(pod.addr))
			Eventually(answers(client, at(svc.Spec.ClusterIPs[1], 80))).WithTimeout(soon).Should(Equal(pod.six.addr))
		}

		By("removing one family")
		single := corev1.IPFamilyPolicySingleStack
		c.update("web", func(s *corev1.Service) {
			s.Spec.IPFamilyPolicy, s.Spec.ClusterIPs, s.Spec.IPFamilies = &single, s.Spec.ClusterIPs[:1], s.Spec.IPFamilies[:1]
		})
		Eventually(failure(c.pod, at(svc.Spec.ClusterIPs[1], 80))).WithTimeout(soon).Should(HaveOccurred())
		Expect(ask(c.pod, at(svc.Spec.ClusterIPs[0], 80))).To(Equal(pod.addr))
	})

	It("with only IPv6 is served", func() {
		svc := c.service("web", func(s *corev1.Service) { s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} })
		pod := c.startPod("web", 1, here)
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(pod.six.addr))
	})

	It("whose port changes 10 times is served on the last one, and open connections continue", func() {
		svc := c.service("web")
		pod := c.startPod("web", 1, here)
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(pod.addr))
		open, err := connect(c.pod, vip(svc))
		Expect(err).NotTo(HaveOccurred())
		for i := range int32(10) {
			c.update("web", func(s *corev1.Service) { s.Spec.Ports[0].Port = 8000 + i })
			Expect(open.works()).To(Succeed())
		}
		Eventually(answers(c.pod, vipOf(svc, 8009))).WithTimeout(soon).Should(Equal(pod.addr))
		for _, port := range []int32{80, 8000, 8008} {
			Eventually(failure(c.pod, vipOf(svc, port))).WithTimeout(soon).Should(HaveOccurred())
		}
		Expect(open.works()).To(Succeed())
	})

	It("whose selector changes uses the new Pods for new connections, and open ones continue", func() {
		svc := c.service("web")
		blue, green := c.startPod("web", 1, here), c.startPod("green", 2, here)
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(blue.addr))
		open, err := connect(c.pod, vip(svc))
		Expect(err).NotTo(HaveOccurred())
		c.update("web", func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "green"} })
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(green.addr))
		Expect(open.works()).To(Succeed())
	})

	It("that is deleted and created again with its name is served at its new address", func() {
		old := c.service("web")
		pod := c.startPod("web", 1, here)
		Eventually(answers(c.pod, vip(old))).WithTimeout(soon).Should(Equal(pod.addr))
		for range 3 {
			c.deleteService("web")
			svc := c.service("web", func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 })
			Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(pod.addr))
			Eventually(failure(c.pod, vip(old))).WithTimeout(soon).Should(HaveOccurred())
		}
	})

	It("that gets the cluster IP of one just deleted is served", func() {
		old := c.service("web")
		pod := c.startPod("web", 1, here)
		Eventually(answers(c.pod, vip(old))).WithTimeout(soon).Should(Equal(pod.addr))
		c.deleteService("web")
		svc := c.service("other", func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.Selector = old.Spec.ClusterIP, map[string]string{"app": "web"}
		})
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(pod.addr))
	})
})

var _ = Describe("a Service", func() {
	var c *cluster
	BeforeEach(func() { c = newCluster() })

	DescribeTable("does not affect unused addresses of the ServiceCIDR, where clients are rejected", func(args ...string) {
		c.Node.Output("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
		svc := c.service("web")
		pod := c.startPod("web", 1, here)
		c.usher(args...)
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(pod.addr))
		Eventually(func() error {
			conn, err := c.pod.Dial("", "10.96.200.200:80", 5*time.Second) // in mode address the second SYN may be the first that is answered
			if err == nil {
				conn.Close()
			}
			return err
		}).WithTimeout(soon).Should(Or(refused, MatchError(syscall.EHOSTUNREACH), MatchError(syscall.EACCES)))
	},
		Entry("iptables", "--portal=iptables"), Entry("nftables", "--portal=nftables"),
		Entry("address", "--portal=address"))

	It("with the label service.kubernetes.io/service-proxy-name is proxied if that has usher's configured name", func() {
		ours, foreign := c.service("ours", labelled("usher.example")), c.service("foreign", labelled("somebody"))
		pod := c.startPod("ours", 1, here)
		c.startPod("foreign", 2, here)
		c.usher("--service-proxy-name=usher.example")
		Eventually(answers(c.pod, vip(ours))).WithTimeout(soon).Should(Equal(pod.addr))
		Expect(failure(c.pod, vip(foreign))()).To(HaveOccurred())
	})

	It("closes connections by its idle timeout and maximum age annotations", func() {
		svc := c.service("web", noSelector, func(s *corev1.Service) {
			s.Annotations = map[string]string{"usher.io/connection-idle-timeout": "1s"}
		})
		old := c.service("old", noSelector, func(s *corev1.Service) {
			s.Annotations = map[string]string{"usher.io/max-connection-age": "1s"}
		})
		serve(c.Pods, netip.AddrPortFrom(lab.Pod(1), 8080))
		for _, name := range []string{"web", "old"} {
			c.write(c.slice(name, name, endpoint(lab.Pod(1))))
		}
		u := c.usher()
		for _, to := range []string{vip(svc), vip(old)} {
			Eventually(answers(c.pod, to)).WithTimeout(soon).Should(Equal(netip.AddrPortFrom(lab.Pod(1), 8080)))
			conn, err := c.pod.Dial("", to, 3*time.Second)
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(conn.Close)
		}
		for _, end := range []string{"idle", "max-age"} {
			Eventually(func() string { return string(u.Out.Contents()) }).WithTimeout(soon).Should(ContainSubstring(end))
		}
	})

	It("sends and accepts PROXY protocol headers as its annotations specify", func() {
		const send, accept, aws = "usher.io/proxy-protocol", "usher.io/accept-proxy-protocol", "service.beta.kubernetes.io/aws-load-balancer-proxy-protocol"
		annotate := func(annotations map[string]string) func(*corev1.Service) {
			return func(s *corev1.Service) { s.Annotations = annotations }
		}
		svc := c.service("web", noSelector, annotate(map[string]string{send: "v1"}), func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort })
		pod := serve(c.Pods, netip.AddrPortFrom(lab.Pod(1), 8080))
		c.write(c.slice("web", "a", endpoint(lab.Pod(1))))
		c.usher("--load-balancer-cidr=192.0.2.0/24")
		nodePort := fmt.Sprintf("%s:%d", lab.NodeOut4, svc.Spec.Ports[0].NodePort)
		// echo returns a function that sends only the given text and returns the text that the endpoint received.
		echo := func(client *lab.Dialer, to, sent string) func() (string, error) {
			return func() (string, error) {
				conn, err := client.Dial("", to, 3*time.Second)
				if err != nil {
					return "", err
				}
				defer conn.Close()
				if err := errors.Join(conn.SetDeadline(time.Now().Add(10*time.Second)), second(conn.Write([]byte(sent))), conn.CloseWrite()); err != nil {
					return "", err
				}
				all, err := io.ReadAll(conn)
				local, _ := conn.LocalAddr().(*net.TCPAddr)
				return strings.ReplaceAll(strings.TrimPrefix(string(all), pod.addr.String()+"\n"), fmt.Sprint(local.Port), "PORT"), err
			}
		}
		becomes := func(client *lab.Dialer, to, sent, got string) {
			GinkgoHelper()
			Eventually(echo(client, to, sent)).WithTimeout(soon).Should(Equal(got))
		}
		balancer := "PROXY TCP4 203.0.113.9 203.0.113.1 4711 443\r\n"
		clusterIP := svc.Spec.ClusterIP

		becomes(c.pod, vip(svc), "hello", "PROXY TCP4 "+lab.PodClient4+" "+clusterIP+" PORT 80\r\nhello")
		becomes(c.outside, nodePort, balancer, "PROXY TCP4 192.0.2.2 192.0.2.1 PORT "+fmt.Sprint(svc.Spec.Ports[0].NodePort)+"\r\n"+balancer)

		By("changing the annotations")
		c.update("web", annotate(map[string]string{accept: "192.0.2.2/32"}))
		becomes(c.pod, vip(svc), "hello", "hello")
		becomes(c.outside, nodePort, balancer+"hello", "hello")
		Eventually(func() error { return second(echo(c.outside, nodePort, "hello")()) }).WithTimeout(soon).Should(MatchError(syscall.ECONNRESET))
		c.update("web", annotate(map[string]string{accept: "192.0.2.99"}))
		becomes(c.outside, nodePort, balancer, balancer)
		c.update("web", annotate(map[string]string{aws: "*", send: "v1"}))
		becomes(c.outside, nodePort, balancer+"hello", "PROXY TCP4 203.0.113.9 192.0.2.1 4711 "+fmt.Sprint(svc.Spec.Ports[0].NodePort)+"\r\nhello")

		By("setting invalid annotations")
		c.update("web", annotate(map[string]string{accept: "everywhere", send: "v3"}))
		becomes(c.outside, nodePort, balancer, balancer)
		Eventually(c.warnings("web")).WithTimeout(soon).Should(ConsistOf(
			ContainSubstring(`metadata.annotations[usher.io/proxy-protocol]: Invalid value: "v3": must be v1 or v2`),
			ContainSubstring(`metadata.annotations[usher.io/accept-proxy-protocol]: Invalid value: "everywhere": must be networks of load balancers`)))

		By("removing the annotations")
		c.update("web", annotate(map[string]string{send: "v1"}))
		becomes(c.pod, vip(svc), "hello", "PROXY TCP4 "+lab.PodClient4+" "+clusterIP+" PORT 80\r\nhello")
		c.update("web", annotate(nil))
		becomes(c.pod, vip(svc), "hello", "hello")
	})

	It("shows endpoints the client address by its annotation when set, changed, removed or invalid", func() {
		node := here
		svc := c.service("web", noSelector, nodePort)
		listener := c.Pods.Listen(netip.AddrPortFrom(lab.Pod(1), 8080).String())
		lab.Serve(listener, func(conn net.Conn) { fmt.Fprint(conn, conn.RemoteAddr()) })
		c.write(c.slice("web", "web", endpoint(lab.Pod(1), func(e *discoveryv1.Endpoint) { e.NodeName = &node })))
		u := c.usher()
		seen := func() (string, error) {
			conn, err := c.outside.Dial("", at(lab.NodeOut4, svc.Spec.Ports[0].NodePort), 3*time.Second)
			if err != nil {
				return "", err
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(3 * time.Second))
			text, err := io.ReadAll(conn)
			host, _, _ := net.SplitHostPort(string(text))
			return host, err
		}
		annotate := func(value string) {
			GinkgoHelper()
			c.update("web", func(s *corev1.Service) {
				s.Annotations = map[string]string{"usher.io/client-address": value}
				if value == "" {
					s.Annotations = nil
				}
			})
		}
		Eventually(seen).WithTimeout(soon).Should(Equal(lab.Outside4))
		annotate("node")
		Eventually(seen).WithTimeout(soon).Should(And(Not(BeEmpty()), Not(Equal(lab.Outside4))))
		annotate("auto")
		Eventually(seen).WithTimeout(soon).Should(Equal(lab.Outside4))
		annotate("node")
		Eventually(seen).WithTimeout(soon).ShouldNot(Equal(lab.Outside4))
		annotate("")
		Eventually(seen).WithTimeout(soon).Should(Equal(lab.Outside4))
		annotate("node")
		Eventually(seen).WithTimeout(soon).ShouldNot(Equal(lab.Outside4))
		annotate("client")
		Eventually(seen).WithTimeout(soon).Should(Equal(lab.Outside4), "an invalid value means the default")
		Eventually(c.warnings("web")).WithTimeout(soon).Should(ContainElement(And(
			ContainSubstring("usher.io/client-address"), ContainSubstring(`"client"`), ContainSubstring(`"auto", "node"`))))
		Expect(string(u.Out.Contents())).To(ContainSubstring(", as the client): connected in "))
	})
})

// labelled is for Services that the proxy of this name serves.
func labelled(name string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": name}
	}
}

// second returns the second of two results, the error.
func second[T any](_ T, err error) error { return err }
