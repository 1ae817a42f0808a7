package cluster

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
)

// Every spec runs usher with the role that deploy/kustomize gives it.

const roleNamespace, roleName = metav1.NamespaceSystem, "usher"

// leastRole returns a kubeconfig that has only the role, for the API server at a URL.
func leastRole(server string) string {
	GinkgoHelper()
	return plane.Kubeconfig(plane.ServiceAccount(context.Background(), roleNamespace, roleName), server)
}

// createAccount creates a role and a ServiceAccount that has it, both with the same name.
func createAccount(name string, rules []rbacv1.PolicyRule) {
	GinkgoHelper()
	ctx := context.Background()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: roleNamespace}}
	Expect(plane.Client.CoreV1().ServiceAccounts(roleNamespace).Create(ctx, account, metav1.CreateOptions{})).Error().NotTo(HaveOccurred())
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	Expect(plane.Client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})).Error().NotTo(HaveOccurred())
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: roleNamespace}},
	}
	Expect(plane.Client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})).Error().NotTo(HaveOccurred())
}

// deployedRules returns the rules of the ClusterRoles in deploy/kustomize.
func deployedRules() (rules []rbacv1.PolicyRule) {
	GinkgoHelper()
	for _, object := range deployed() {
		if object.GetKind() != "ClusterRole" {
			continue
		}
		var role rbacv1.ClusterRole
		Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role)).To(Succeed())
		rules = append(rules, role.Rules...)
	}
	return rules
}

var _ = Describe("the least role", func() {
	var api kubernetes.Interface
	BeforeEach(func() {
		var err error
		api, err = kubernetes.NewForConfig(plane.Config(plane.ServiceAccount(context.Background(), roleNamespace, roleName)))
		Expect(err).NotTo(HaveOccurred())
	})

	It("is enough: usher serves, and no request is forbidden", func() {
		c := newCluster()
		svc := c.service("web", nodePort)
		pod := c.startPod("web", 1, here)
		u := c.usher()
		Eventually(answers(c.pod, vip(svc))).WithTimeout(soon).Should(Equal(pod.addr))
		u.stop()
		Expect(string(u.Err.Contents())).NotTo(MatchRegexp("(?i)forbidden"))
	})

	It("grants only the permissions in the design", func(ctx SpecContext) {
		review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"}}
		review, err := api.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, review, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		allowed := map[string][]string{
			"services": {"list", "watch"}, "nodes": {"list", "watch"}, "endpointslices": {"list", "watch"}, "servicecidrs": {"list", "watch"},
			"events": {"create", "patch"}, // patch counts a repeated event
			// Kubernetes grants these to every ServiceAccount.
			"clustertrustbundles": {"get", "list", "watch"},
			"selfsubjectreviews":  {"create"}, "selfsubjectaccessreviews": {"create"}, "selfsubjectrulesreviews": {"create"},
		}
		for _, rule := range review.Status.ResourceRules {
			for _, resource := range rule.Resources {
				Expect(allowed).To(HaveKey(resource), "%v", rule)
				for _, verb := range rule.Verbs {
					Expect(allowed[resource]).To(ContainElement(verb), "%v", rule)
				}
			}
		}
	})

	It("does not allow other requests", func(ctx SpecContext) {
		core := api.CoreV1()
		forbidden := func(what string, err error) {
			GinkgoHelper()
			Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%s: %v", what, err)
		}
		_, err := core.Secrets("kube-system").List(ctx, metav1.ListOptions{})
		forbidden("list secrets", err)
		_, err = core.Secrets("default").Get(ctx, "any", metav1.GetOptions{})
		forbidden("get a secret", err)
		_, err = core.ConfigMaps("kube-system").List(ctx, metav1.ListOptions{})
		forbidden("list config maps", err)
		_, err = core.Pods("").List(ctx, metav1.ListOptions{})
		forbidden("list pods", err)
		_, err = core.Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "any"}}, metav1.CreateOptions{})
		forbidden("create a service", err)
		_, err = core.Services("default").UpdateStatus(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}}, metav1.UpdateOptions{})
		forbidden("write a service's status", err)
		forbidden("delete a service", core.Services("default").Delete(ctx, "kubernetes", metav1.DeleteOptions{}))
		forbidden("delete a node", core.Nodes().Delete(ctx, here, metav1.DeleteOptions{}))
		_, err = core.Nodes().Patch(ctx, here, "application/merge-patch+json", []byte(`{}`), metav1.PatchOptions{})
		forbidden("patch a node", err)
		forbidden("delete a slice", api.DiscoveryV1().EndpointSlices("default").Delete(ctx, "kubernetes", metav1.DeleteOptions{}))
		_, err = core.Events("default").List(ctx, metav1.ListOptions{})
		forbidden("list events", err)
	})
})
