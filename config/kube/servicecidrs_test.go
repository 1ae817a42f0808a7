package kube

import (
	"encoding/json"
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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/usherproxy/usher/config"
)

// serve answers a list or a watch with the objects of source. list is an empty list of their kind. It returns false
// for watches with initial events, so that the server rejects them.
func serve(w http.ResponseWriter, r *http.Request, source *fcache.FakeControllerSource, list metav1.ListInterface) bool {
	defer GinkgoRecover()
	query := r.URL.Query()
	if query.Has("sendInitialEvents") {
		return false
	}
	w.Header().Set("Content-Type", "application/json")
	if !query.Has("watch") {
		now, err := source.List(metav1.ListOptions{})
		Expect(err).NotTo(HaveOccurred())
		items, err := meta.ExtractList(now)
		Expect(err).NotTo(HaveOccurred())
		Expect(meta.SetList(list.(runtime.Object), items)).To(Succeed())
		list.SetResourceVersion(now.(metav1.ListInterface).GetResourceVersion())
		Expect(json.NewEncoder(w).Encode(list)).To(Succeed())
		return true
	}
	events, err := source.Watch(metav1.ListOptions{ResourceVersion: query.Get("resourceVersion")})
	Expect(err).NotTo(HaveOccurred())
	defer events.Stop()
	for w.(http.Flusher).Flush(); ; w.(http.Flusher).Flush() {
		select {
		case <-r.Context().Done():
			return true
		case e := <-events.ResultChan():
			_ = json.NewEncoder(w).Encode(metav1.WatchEvent{Type: string(e.Type), Object: runtime.RawExtension{Object: e.Object}})
		}
	}
}

var _ = Describe("ServiceCIDRs", func() {
	cidr := func(name string, cidrs ...string) *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
	}
	prefixes := func(text ...string) (out []netip.Prefix) {
		for _, t := range text {
			out = append(out, netip.MustParsePrefix(t))
		}
		return out
	}

	// objects serves Nodes and ServiceCIDRs.
	objects := func(nodeObjects, cidrObjects *fcache.FakeControllerSource) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			switch filepath.Base(r.URL.Path) {
			case "nodes":
				return serve(w, r, nodeObjects, &corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}})
			case "servicecidrs":
				return serve(w, r, cidrObjects, &networkingv1.ServiceCIDRList{TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDRList"}})
			}
			return false
		}
	}

	It("are reported with the node when added, changed or deleted, also across the Node's deletion", func() {
		node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}}
		nodeObjects, cidrObjects := fcache.NewFakeControllerSource(), fcache.NewFakeControllerSource()
		nodeObjects.Add(node)
		cidrObjects.Add(cidr("kubernetes", "10.96.0.0/16", "fd96::/112"))
		server := newFakeServer()
		server.become(objects(nodeObjects, cidrObjects))
		nodes := make(chan config.Node, 100)
		follow(server.kubeconfig(nil), func(o *Options) { o.OnNode = func(n config.Node) { nodes <- n } })
		become := func(cidrs ...string) {
			GinkgoHelper()
			Eventually(nodes).WithTimeout(patience).Should(Receive(HaveField("ServiceCIDRs", Equal(prefixes(cidrs...)))))
		}
		become("10.96.0.0/16", "fd96::/112")

		cidrObjects.Add(cidr("more", "10.112.0.0/16"))
		become("10.96.0.0/16", "10.112.0.0/16", "fd96::/112")
		cidrObjects.Modify(cidr("kubernetes", "10.96.0.0/16"))
		become("10.96.0.0/16", "10.112.0.0/16")
		cidrObjects.Delete(cidr("more"))
		become("10.96.0.0/16")

		nodeObjects.Delete(node)
		Eventually(nodes).WithTimeout(patience).Should(Receive(And(HaveField("Leaving", true), HaveField("ServiceCIDRs", Equal(prefixes("10.96.0.0/16"))))), "the rest of the node's state is kept")
		nodeObjects.Add(node)
		cidrObjects.Delete(cidr("kubernetes"))
		become()
	})

	It("stay known if the API server, like one that starts, does not allow to watch them", func() {
		nodeObjects, cidrObjects := fcache.NewFakeControllerSource(), fcache.NewFakeControllerSource()
		nodeObjects.Add(&corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}})
		cidrObjects.Add(cidr("kubernetes", "10.96.0.0/16"))
		server := newFakeServer()
		server.become(objects(nodeObjects, cidrObjects))
		nodes := make(chan config.Node, 100)
		follow(server.kubeconfig(nil), func(o *Options) { o.OnNode = func(n config.Node) { nodes <- n } })
		Eventually(nodes).WithTimeout(patience).Should(Receive(HaveField("ServiceCIDRs", Equal(prefixes("10.96.0.0/16")))))

		asked := make(chan struct{}, 100)
		server.become(func(w http.ResponseWriter, r *http.Request) bool {
			if filepath.Base(r.URL.Path) != "servicecidrs" {
				return objects(nodeObjects, cidrObjects)(w, r)
			}
			asked <- struct{}{}
			return refuses(http.StatusForbidden, func(*http.Request) bool { return true })(w, r)
		})
		Eventually(asked).WithTimeout(patience).Should(Receive())
		Consistently(nodes).WithTimeout(2 * time.Second).ShouldNot(Receive())
	})

	DescribeTable("are unknown, and nothing fails, if the API server rejects the requests",
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
			line := logrus.InfoLevel.String() + ": Service CIDRs unknown; packets to their unused addresses are not rejected"
			Eventually(lines).WithTimeout(patience).Should(ConsistOf(line))
			Eventually(reach.Status).WithTimeout(patience).Should(HaveField("Connected", true))
			Consistently(lines).WithTimeout(2 * time.Second).Should(ConsistOf(line))
			Expect(reach.Status().Err).NotTo(HaveOccurred())
		},
		Entry("404: no such resource", http.StatusNotFound),
		Entry("403: not allowed by the role", http.StatusForbidden),
	)
})
