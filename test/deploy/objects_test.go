package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/usherproxy/usher/test/deploy/render"
)

func TestDeploy(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "test/deploy")
}

// deploy is the folder under test, root that of the repository.
const root, deploy = "../..", "../../deploy"

var decoder = serializer.NewCodecFactory(clientscheme.Scheme, serializer.EnableStrict).UniversalDeserializer()

// installation holds the objects that install usher in a cluster.
type installation struct {
	account *corev1.ServiceAccount
	role    *rbacv1.ClusterRole
	binding *rbacv1.ClusterRoleBinding
	daemon  *appsv1.DaemonSet

	// The chart makes these only on request.
	config  *corev1.ConfigMap
	policy  *networkingv1.NetworkPolicy
	monitor map[string]any // a PodMonitor
}

func (i *installation) pod() *corev1.PodSpec { return &i.daemon.Spec.Template.Spec }

func (i *installation) container() *corev1.Container {
	GinkgoHelper()
	Expect(i.pod().Containers).To(HaveLen(1))
	return &i.pod().Containers[0]
}

// parse decodes objects strictly: an unknown field or a wrong value fails.
func parse(text []byte) *installation {
	GinkgoHelper()
	out := &installation{}
	for document := range strings.SplitSeq("\n"+string(text), "\n---\n") {
		if strings.TrimSpace(document) == "" {
			continue
		}
		if strings.Contains(document, "\nkind: PodMonitor\n") {
			Expect(out.monitor).To(BeNil())
			Expect(yaml.UnmarshalStrict([]byte(document), &out.monitor)).To(Succeed())
			continue
		}
		object, _, err := decoder.Decode([]byte(document), nil, nil)
		Expect(err).NotTo(HaveOccurred(), document)
		out.add(object)
	}
	return out
}

func (i *installation) add(object runtime.Object) {
	GinkgoHelper()
	switch o := object.(type) {
	case *corev1.ServiceAccount:
		Expect(i.account).To(BeNil())
		i.account = o
	case *rbacv1.ClusterRole:
		Expect(i.role).To(BeNil())
		i.role = o
	case *rbacv1.ClusterRoleBinding:
		Expect(i.binding).To(BeNil())
		i.binding = o
	case *appsv1.DaemonSet:
		Expect(i.daemon).To(BeNil())
		i.daemon = o
	case *corev1.ConfigMap:
		Expect(i.config).To(BeNil())
		i.config = o
	case *networkingv1.NetworkPolicy:
		Expect(i.policy).To(BeNil())
		i.policy = o
	default:
		Fail(fmt.Sprintf("there is a %T", object))
	}
}

func kustomize(folder string) *installation {
	GinkgoHelper()
	text, err := render.Kustomize(filepath.Join(deploy, folder))
	Expect(err).NotTo(HaveOccurred())
	return parse(text)
}

func chart(values map[string]any) *installation {
	GinkgoHelper()
	text, _, err := render.Chart(filepath.Join(deploy, "helm", "usher"), values)
	Expect(err).NotTo(HaveOccurred())
	return parse(text)
}

// withoutHelm removes the labels that mark an object as managed by Helm.
func (i *installation) withoutHelm() *installation {
	for _, o := range []metav1.Object{i.account, i.role, i.binding, i.daemon} {
		labels := o.GetLabels()
		for _, l := range []string{"app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"} {
			delete(labels, l)
		}
		o.SetLabels(labels)
	}
	return i
}

var _ = Describe("the objects", func() {
	It("are the same from kustomize and from Helm", func() {
		ours, theirs := kustomize("kustomize"), chart(nil).withoutHelm()
		Expect(theirs.account).To(Equal(ours.account))
		Expect(theirs.role).To(Equal(ours.role))
		Expect(theirs.binding).To(Equal(ours.binding))
		Expect(theirs.daemon).To(Equal(ours.daemon))
	})

	It("are the same with kube-proxy's configuration", func() {
		theirs := chart(map[string]any{"kubeProxyConfig": map[string]any{"configMap": "kube-proxy"}}).withoutHelm()
		Expect(theirs.daemon).To(Equal(kustomize("kustomize-kubeadm").daemon))
	})

	It("are plain files that need no kustomize", func() {
		var all []byte
		for _, file := range []string{"serviceaccount.yaml", "clusterrole.yaml", "clusterrolebinding.yaml", "daemonset.yaml"} {
			text, err := os.ReadFile(filepath.Join(deploy, "kustomize", file))
			Expect(err).NotTo(HaveOccurred())
			all = append(append(all, "\n---\n"...), text...)
		}
		Expect(parse(all).role).To(Equal(kustomize("kustomize").role))
	})
})
