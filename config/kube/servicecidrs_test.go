package kube

import (
	"context"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/usherproxy/usher/config"
)

var _ = Describe("ServiceCIDRs", func() {
	cidr := func(name string, cidrs ...string) *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
	}
	prefixes := func(text ...string) (out []netip.Prefix) {
		for _, t := range text {
			out = append(out, netip.MustParsePrefix(t))
		}
		return out
	}

	It("are told with the node, when they come, change and go, also once the Node object is deleted", func(ctx SpecContext) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}}
		client := fake.NewClientset(node, cidr("kubernetes", "10.96.0.0/16", "fd96::/112"))
		nodes := make(chan config.Node, 100)
		log, _ := logtest.NewNullLogger()
		s, err := New(Options{Client: client, NodeName: "worker-1", Log: log, OnNode: func(n config.Node) { nodes <- n }})
		Expect(err).NotTo(HaveOccurred())
		ctx2, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Run(ctx2, func([]config.Service) {}) }()
		DeferCleanup(func() { cancel(); Eventually(done).WithTimeout(patience).Should(BeClosed()) })
		become := func(cidrs ...string) {
			GinkgoHelper()
			Eventually(nodes).WithTimeout(patience).Should(Receive(HaveField("ServiceCIDRs", Equal(prefixes(cidrs...)))))
		}
		become("10.96.0.0/16", "fd96::/112")

		api := client.NetworkingV1().ServiceCIDRs()
		Expect(api.Create(ctx, cidr("more", "10.112.0.0/16"), metav1.CreateOptions{})).Error().NotTo(HaveOccurred())
		become("10.96.0.0/16", "10.112.0.0/16", "fd96::/112")
		Expect(api.Update(ctx, cidr("kubernetes", "10.96.0.0/16"), metav1.UpdateOptions{})).Error().NotTo(HaveOccurred())
		become("10.96.0.0/16", "10.112.0.0/16")
		Expect(api.Delete(ctx, "more", metav1.DeleteOptions{})).To(Succeed())
		become("10.96.0.0/16")

		Expect(client.CoreV1().Nodes().Delete(ctx, "worker-1", metav1.DeleteOptions{})).To(Succeed())
		Consistently(nodes).WithTimeout(300*time.Millisecond).ShouldNot(Receive(), "what was known of the node stays")
		Expect(client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})).Error().NotTo(HaveOccurred())
		Expect(api.Delete(ctx, "kubernetes", metav1.DeleteOptions{})).To(Succeed())
		become()
	}, NodeTimeout(patience))

	DescribeTable("are not known, and nothing fails, where the API server refuses them",
		func(code int) {
			server := newFakeServer()
			server.become(refuses(code, func(r *http.Request) bool { return filepath.Base(r.URL.Path) == "servicecidrs" }))
			log, seen := logtest.NewNullLogger()
			reach, complete := follow(server.kubeconfig(nil), func(o *Options) { o.Log, o.OnNode = log, func(config.Node) {} })
			Eventually(complete).WithTimeout(patience).Should(BeClosed())
			lines := func() (all []string) {
				for _, e := range seen.AllEntries() {
					if strings.Contains(e.Message, "CIDRs") {
						all = append(all, e.Level.String()+": "+e.Message)
					}
				}
				return all
			}
			line := logrus.InfoLevel.String() + ": The service CIDRs are not known: packets to their unused addresses are not rejected"
			Eventually(lines).WithTimeout(patience).Should(ConsistOf(line))
			Eventually(reach.Status).WithTimeout(patience).Should(HaveField("Connected", true))
			Consistently(lines).WithTimeout(2 * time.Second).Should(ConsistOf(line))
			Expect(reach.Status().Err).NotTo(HaveOccurred())
		},
		Entry("since it has none", http.StatusNotFound),
		Entry("by the role", http.StatusForbidden),
	)
})
