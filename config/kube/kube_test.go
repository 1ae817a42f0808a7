package kube

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	logtest "github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

// Tests that need an API server are in test/cluster, against a real one.
func TestKube(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "kube")
}

// unreachable returns a client of an unreachable API server.
func unreachable() *Client {
	client, err := NewClient(&rest.Config{Host: "192.0.2.1"})
	if err != nil {
		panic(err)
	}
	return client
}

var _ = DescribeTable("the API server is asked only for relevant objects",
	func(proxyName string, discovery bool, object map[string]string, service, slice bool) {
		of, err := selectorsFor(proxyName, discovery)
		Expect(err).NotTo(HaveOccurred())
		matches := func(selector string) bool {
			s, err := labels.Parse(selector)
			Expect(err).NotTo(HaveOccurred())
			return s.Matches(labels.Set(object))
		}
		Expect(matches(of.serviceLabels)).To(Equal(service), "Service")
		Expect(matches(of.sliceLabels)).To(Equal(slice), "EndpointSlice")
	},
	Entry("no label", "", false, map[string]string{}, true, true),
	Entry("headless label: only slices are excluded", "", false, map[string]string{"service.kubernetes.io/headless": ""}, true, false),
	Entry("another proxy's label: only Services are excluded", "", false, map[string]string{"service.kubernetes.io/service-proxy-name": "other"}, false, true),
	Entry("with a proxy name: its own label", "usher", false, map[string]string{"service.kubernetes.io/service-proxy-name": "usher"}, true, true),
	Entry("with a proxy name: no label, as on slices that users create", "usher", false, map[string]string{}, false, true),
	Entry("with a proxy name: headless label", "usher", false, map[string]string{"service.kubernetes.io/headless": ""}, false, false),
	Entry("with a proxy name: another proxy's label", "usher", false, map[string]string{"service.kubernetes.io/service-proxy-name": "other"}, false, true),
	Entry("with discovery: headless label", "", true, map[string]string{"service.kubernetes.io/headless": ""}, true, true),
	Entry("with discovery: another proxy's label", "usher", true, map[string]string{"service.kubernetes.io/service-proxy-name": "other"}, true, true),
)

var _ = It("the API server is asked for Services without a cluster IP only with discovery", func() {
	of, err := selectorsFor("", false)
	Expect(err).NotTo(HaveOccurred())
	Expect(of.serviceFields).To(Equal("spec.clusterIP!=None"))
	Expect(selectorsFor("", true)).To(BeZero())
})

var _ = Describe("a Node", func() {
	node := func(change func(*corev1.Node)) config.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"topology.kubernetes.io/zone": "east"}},
			Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24", "fd00:1::/64"}}}
		change(n)
		return nodeOf(n)
	}
	It("has a name, a zone, and Pod networks", func() {
		Expect(node(func(*corev1.Node) {})).To(Equal(config.Node{Name: "n1", Zone: "east",
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:1::/64")}}))
	})
	It("has one primary address of each family: the first InternalIP, or the first ExternalIP", func() {
		addresses := func(of ...corev1.NodeAddress) []netip.Addr {
			return node(func(n *corev1.Node) {
				n.Status = corev1.NodeStatus{Addresses: of, Images: []corev1.ContainerImage{{}}}
				Expect(trim(n)).To(BeIdenticalTo(n))
				Expect(n.Status.Images).To(BeNil())
			}).Addresses
		}
		at := func(kind corev1.NodeAddressType, a string) corev1.NodeAddress {
			return corev1.NodeAddress{Type: kind, Address: a}
		}
		Expect(addresses()).To(BeEmpty())
		Expect(addresses(at(corev1.NodeHostName, "n1"), at(corev1.NodeExternalIP, "203.0.113.1"), at(corev1.NodeExternalIP, "2001:db8::1"),
			at(corev1.NodeInternalIP, "192.0.2.1"), at(corev1.NodeInternalIP, "192.0.2.2"))).
			To(Equal([]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}))
	})
	It("is leaving while it is being deleted", func() {
		Expect(node(func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: time.Now()} }).Leaving).To(BeTrue())
	})
	It("is leaving once the cluster autoscaler has marked it", func() {
		taint := corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}
		Expect(node(func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, taint) }).Leaving).To(BeTrue())
	})
	It("is leaving while no Node object exists, and otherwise keeps its state if that is deleted", func() {
		var now config.Node
		log, logged := logtest.NewNullLogger()
		s, err := New(Options{Client: unreachable(), NodeName: "n1", Log: log, OnNode: func(n config.Node) { now = n }})
		Expect(err).NotTo(HaveOccurred())
		web := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
		Expect(s.services.GetStore().Add(web)).To(Succeed())
		marked := func() bool { return len(s.store.Take()) > 0 }
		s.lookAtNode()
		Expect(now).To(Equal(config.Node{Name: "n1", Leaving: true}))
		s.lookAtNode()
		Expect(logged.AllEntries()).To(HaveExactElements(HaveField("Message", HavePrefix("No Node object has this name"))))
		object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"topology.kubernetes.io/zone": "east"}},
			Spec:   corev1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24"}},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}}}
		Expect(s.nodes.GetStore().Add(object)).To(Succeed())
		marked()
		s.lookAtNode()
		Expect(marked()).To(BeTrue(), "its zone matters to Services")
		known := now
		Expect(known).To(Equal(nodeOf(object)))
		Expect(s.nodes.GetStore().Delete(object)).To(Succeed())
		s.lookAtNode()
		Expect(marked()).To(BeFalse())
		known.Leaving = true
		Expect(now).To(Equal(known))
		Expect(s.nodes.GetStore().Add(object)).To(Succeed())
		s.lookAtNode()
		Expect(marked()).To(BeFalse())
		Expect(now.Leaving).To(BeFalse(), "the Node object exists again")
	})
	It("with other taints is not leaving", func() {
		taint := corev1.Taint{Key: "node.kubernetes.io/unschedulable", Effect: corev1.TaintEffectNoSchedule}
		Expect(node(func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, taint) }).Leaving).To(BeFalse())
	})
})

var _ = Describe("a stored object", func() {
	meta := metav1.ObjectMeta{Name: "a", Labels: map[string]string{"keep": "me"}, Annotations: map[string]string{"long": "text"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}}
	It("keeps the annotations that usher reads", func() {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default", Annotations: map[string]string{
			"usher.io/udp-idle-timeout": "7s", "usher.io/connection-idle-timeout": "8s", "usher.io/max-connection-age": "9s", translate.AnnotationClientAddress: "node", translate.AnnotationAWSProxyProtocol: "*", "long": "text"}},
			Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{
				{Name: "tcp", Port: 53, Protocol: corev1.ProtocolTCP}, {Name: "udp", Port: 53, Protocol: corev1.ProtocolUDP}}}}
		Expect(trim(svc)).To(BeIdenticalTo(svc))
		Expect(svc.Annotations).NotTo(HaveKey("long"))
		Expect(svc.Annotations).To(HaveKey(translate.AnnotationAWSProxyProtocol))
		ports := func() []config.ServicePort {
			out, _ := translate.Service(svc, nil, config.Node{}, translate.Options{})
			return out.Ports
		}()
		Expect(ports[0].NodeAddress).To(BeTrue())
		Expect([]time.Duration{ports[0].IdleTimeout, ports[0].MaxAge, ports[1].UDPIdleTimeout}).To(Equal([]time.Duration{8 * time.Second, 9 * time.Second, 7 * time.Second}))
	})
	It("has no managed fields and other annotations, but its labels and spec", func() {
		svc := &corev1.Service{ObjectMeta: *meta.DeepCopy(), Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Selector: map[string]string{"app": "web"}}}
		Expect(trim(svc)).To(BeIdenticalTo(svc))
		Expect(svc.ManagedFields).To(BeNil())
		Expect(svc.Annotations).To(BeNil())
		Expect(svc.Labels).To(HaveKey("keep"))
		Expect(svc.Spec.ClusterIP).To(Equal("10.96.0.1"))

		slice := &discoveryv1.EndpointSlice{ObjectMeta: *meta.DeepCopy(), Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}}
		Expect(trim(slice)).To(BeIdenticalTo(slice))
		Expect(slice.ManagedFields).To(BeNil())
		Expect(slice.Labels).To(HaveKey("keep"))
		Expect(slice.Endpoints).To(HaveLen(1))
	})
})

var _ = Describe("the problems of a Service", func() {
	It("are logged once, and again only if they recur or their number doubles", func() {
		web := types.NamespacedName{Namespace: "default", Name: "web"}
		log, logged := logtest.NewNullLogger()
		var noted []translate.Problem
		s, err := New(Options{Client: unreachable(), Log: log,
			OnProblems: func(_ types.NamespacedName, problems []translate.Problem) { noted = append(noted, problems...) }})
		Expect(err).NotTo(HaveOccurred())
		wrong := func(n int) {
			slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
				AddressType: discoveryv1.AddressTypeIPv4}
			for range n {
				slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{"239.0.0.1"}})
			}
			svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
				Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.10", Ports: []corev1.ServicePort{{Port: 80}}}}
			_, problems := translate.Service(svc, []*discoveryv1.EndpointSlice{slice}, config.Node{}, translate.Options{})
			s.logProblems(&translate.Result{Model: config.Service{Name: web}, Problems: problems})
		}
		for n := range 100 {
			wrong(1000 - n)
		}
		Expect(noted).To(HaveLen(1))
		Expect(logged.AllEntries()).To(HaveLen(1))
		Expect(logged.LastEntry().String()).To(ContainSubstring("and 999 more of this kind"))
		wrong(2000)
		Expect(noted).To(HaveLen(2))
		for range 10 { // back and forth
			wrong(1000)
			wrong(2001)
		}
		Expect(noted).To(HaveLen(2))
		wrong(0)
		wrong(1)
		Expect(noted).To(HaveLen(3), "there was no problem in between")
	})

	It("are shortened, and limited per namespace, if they change all the time", func() {
		log, logged := logtest.NewNullLogger()
		var reports config.Reports
		noted := map[string]int{}
		s, err := New(Options{Client: unreachable(), Log: log, Reports: &reports,
			OnProblems: func(service types.NamespacedName, problems []translate.Problem) {
				noted[service.Namespace] += len(problems)
			}})
		Expect(err).NotTo(HaveOccurred())
		wrong := func(namespace string, n int) {
			svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web", Annotations: map[string]string{
				"usher.io/connection-idle-timeout": fmt.Sprint(n, strings.Repeat("é", 1_000))}},
				Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.10", Ports: []corev1.ServicePort{{Port: 80}}}}
			_, problems := translate.Service(svc, nil, config.Node{}, translate.Options{})
			Expect(problems).To(HaveLen(1))
			s.logProblems(&translate.Result{Model: config.Service{Name: types.NamespacedName{Namespace: namespace, Name: "web"}}, Problems: problems})
		}
		for n := range 500 {
			wrong("loud", n)
		}
		wrong("quiet", 0)
		Expect(noted["loud"]).To(BeNumerically("<", 300))
		Expect(noted["quiet"]).To(Equal(1))
		Expect(len(logged.AllEntries())).To(BeNumerically("<", 300))
		for _, e := range logged.AllEntries() {
			Expect(len(fmt.Sprint(e.Data))).To(BeNumerically("<", 600))
			Expect(utf8.ValidString(fmt.Sprint(e.Data))).To(BeTrue())
		}
		Expect(reports.All()).To(HaveLen(2))
		Expect(reports.All()).To(HaveEach(HaveField("Message", ContainSubstring("bytes more"))))
	})

	It("are reported while they exist, including port names that do not match", func() {
		var reports config.Reports
		log, _ := logtest.NewNullLogger()
		s, err := New(Options{Client: unreachable(), Log: log, Reports: &reports})
		Expect(err).NotTo(HaveOccurred())
		name := "http"
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1"}, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: new(int32(8080))}}}
		svc := config.Service{Name: types.NamespacedName{Namespace: "default", Name: "web"}, Ports: []config.ServicePort{{ID: config.PortID{Port: "main", Family: config.IPv4}}}}
		slices := []*discoveryv1.EndpointSlice{slice}
		s.logProblems(&translate.Result{Model: svc, Slices: slices})
		all := reports.All()
		Expect(all).To(HaveLen(1))
		Expect(all[0].Message).To(Equal(`ports: "http": no port is named "main", so that port of Service default/web has no endpoints`))
		Expect(all[0].Service).To(Equal(svc.Name))
		name = "main"
		s.logProblems(&translate.Result{Model: svc, Slices: slices})
		Expect(reports.All()).To(BeEmpty())
	})
})

var _ = Describe("triggers", func() {
	It("report the age of each change once, except for changes before the start", func() {
		web := types.NamespacedName{Namespace: "default", Name: "web"}
		slice := func(ago time.Duration) *discoveryv1.EndpointSlice {
			at := time.Now().Add(-ago).Format(time.RFC3339Nano)
			s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: at, "other": "x"}}}
			Expect(trim(s)).Error().NotTo(HaveOccurred())
			return s
		}
		var noted []time.Duration
		collect := func(d time.Duration) { noted = append(noted, d) }
		t := triggers{latest: map[types.NamespacedName]time.Time{}}
		old, newer := slice(time.Hour), slice(time.Minute)

		t.note(web, []*discoveryv1.EndpointSlice{old})
		t.report(true, collect)
		Expect(noted).To(BeEmpty())
		t.note(web, []*discoveryv1.EndpointSlice{old, newer})
		t.report(false, collect)
		Expect(noted).To(ConsistOf(BeNumerically("~", time.Minute, time.Second)))
		t.note(web, []*discoveryv1.EndpointSlice{newer})
		t.report(false, collect)
		Expect(noted).To(HaveLen(1))
	})
})
