package pods

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/usherproxy/usher/cmd/internal/fleet"
	"github.com/usherproxy/usher/config/kube"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func TestPods(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "pods")
}

var _ = Describe("the Pod that is queried on a node", func() {
	pod := func(edit func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(time.Unix(1000, 0))}, Spec: corev1.PodSpec{NodeName: "a"}}
		p.Status.Phase = corev1.PodRunning
		edit(p)
		return p
	}
	ready := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	DescribeTable("is, of two Pods,",
		func(one, other func(*corev1.Pod)) {
			Expect(better(pod(one), pod(other))).To(BeTrue())
			Expect(better(pod(other), pod(one))).To(BeFalse())
		},
		Entry("the one that runs", func(*corev1.Pod) {}, func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }),
		Entry("the one that is not terminating", func(*corev1.Pod) {}, func(p *corev1.Pod) { ready(p); p.DeletionTimestamp = &metav1.Time{} }),
		Entry("the one that is ready", ready, func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(time.Unix(2000, 0)) }),
		Entry("the younger one", func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(time.Unix(2000, 0)) }, func(*corev1.Pod) {}),
	)

	It("is never one without a node", func(ctx context.Context) {
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"},
			Items: []corev1.Pod{*pod(func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = "", corev1.PodPending })}}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(list)
		}))
		DeferCleanup(server.Close)
		api, err := kube.NewClient(&rest.Config{Host: server.URL})
		Expect(err).NotTo(HaveOccurred())
		f := &Fleet{api: api, known: map[found]*client.Client{},
			port: netip.MustParseAddrPort("127.0.0.1:10249"), server: server.URL, options: fleet.Options{Namespace: "kube-system"}}
		_, err = f.Find(ctx)
		Expect(err).To(MatchError(ContainSubstring("no usher instance found: there is no Pod with the label")))
		list.Items = append(list.Items, *pod(func(*corev1.Pod) {}))
		found, err := f.Find(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(found).To(HaveLen(1))
		Expect(found[0].Node).To(Equal("a"))
	})

	It("has the node of its node affinity before it is scheduled", func() {
		p := pod(func(p *corev1.Pod) { p.Spec.NodeName = "" })
		Expect(nodeOf(p)).To(BeEmpty())
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}}}},
		}}}
		Expect(nodeOf(p)).To(Equal("b"))
	})
})
