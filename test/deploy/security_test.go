package deploy

import (
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// each declares specs for every way to install usher.
func each(specs func(get func() *installation)) {
	for name, get := range map[string]func() *installation{
		"kustomize":         func() *installation { return kustomize("kustomize") },
		"kustomize-kubeadm": func() *installation { return kustomize("kustomize-kubeadm") },
		"helm":              func() *installation { return chart(nil) },
		"helm, with everything": func() *installation {
			return chart(map[string]any{
				"apiServer":         map[string]any{"host": "192.0.2.10"},
				"kubeProxyConfig":   map[string]any{"configMap": "kube-proxy"},
				"portal":            "address",
				"serviceProxyName":  "usher",
				"nodePortAddresses": []any{"192.0.2.0/24"},
				"clusterCIDR":       []any{"10.244.0.0/16"},
				"logLevel":          "debug",
				"healthzAddress":    ":10256",
				"adminAddress":      "127.0.0.1:10249",
				"networkPolicy":     map[string]any{"enabled": true},
				"logFormat":         "text",
				"podAnnotations":    map[string]any{"a": "b"},
				"podLabels":         map[string]any{"c": "d"},
				"extraArgs":         []any{"--quarantine=5s"},
			})
		},
	} {
		Context(name, func() { specs(get) })
	}
}

var _ = Describe("an installation", func() {
	each(func(get func() *installation) {
		It("has exactly the permissions that usher needs", func() {
			i := get()
			Expect(i.role.Rules).To(ConsistOf(
				rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list", "watch"}},
				rbacv1.PolicyRule{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}},
				rbacv1.PolicyRule{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"servicecidrs"}, Verbs: []string{"list", "watch"}},
				rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch"}},
				rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
			))
			Expect(i.role.AggregationRule).To(BeNil())
			Expect(i.binding.RoleRef).To(Equal(rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: i.role.Name}))
			Expect(i.binding.Subjects).To(ConsistOf(rbacv1.Subject{Kind: "ServiceAccount", Name: i.account.Name, Namespace: i.account.Namespace}))
			Expect(i.pod().ServiceAccountName).To(Equal(i.account.Name))
			Expect(i.daemon.Namespace).To(Equal(i.account.Namespace))
			Expect(i.daemon.Namespace).To(Equal("kube-system"))
		})

		It("gives the container two capabilities and a read-only root file system", func() {
			i := get()
			Expect(i.container().SecurityContext).To(Equal(&corev1.SecurityContext{
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN", "NET_BIND_SERVICE"}},
				RunAsUser:                ptr.To[int64](0),
				RunAsGroup:               ptr.To[int64](0),
				Privileged:               ptr.To(false),
				AllowPrivilegeEscalation: ptr.To(false),
				ReadOnlyRootFilesystem:   ptr.To(true),
				SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			}))
			Expect(i.pod().HostPID).To(BeFalse())
			Expect(i.pod().HostIPC).To(BeFalse())
			for _, v := range i.pod().Volumes {
				Expect(v.HostPath).To(BeNil(), v.Name)
			}
			for _, m := range i.container().VolumeMounts {
				Expect(m.ReadOnly).To(BeTrue(), m.Name)
			}
		})

		It("sets connection tracking in a privileged init container with the same configuration", func() {
			i := get()
			Expect(i.pod().InitContainers).To(HaveLen(1))
			c := i.pod().InitContainers[0]
			Expect(c.Image).To(Equal(i.container().Image))
			Expect(c.Args[:2]).To(Equal([]string{"run", "--init-only"}))
			for _, arg := range c.Args[2:] {
				Expect(i.container().Args).To(ContainElement(arg))
			}
			for _, arg := range i.container().Args {
				if strings.HasPrefix(arg, "--config=") {
					Expect(c.Args).To(ContainElement(arg))
				}
			}
			Expect(i.container().VolumeMounts).To(ContainElements(c.VolumeMounts))
			Expect(c.SecurityContext).To(Equal(&corev1.SecurityContext{RunAsUser: ptr.To[int64](0), RunAsGroup: ptr.To[int64](0),
				Privileged: ptr.To(true), ReadOnlyRootFilesystem: ptr.To(true)}))
		})

		It("runs on the host network of every Linux node, and declares no ports", func() {
			i := get()
			Expect(i.pod().HostNetwork).To(BeTrue())
			Expect(i.pod().DNSPolicy).To(Equal(corev1.DNSDefault))
			Expect(i.container().Ports).To(BeEmpty())
			Expect(i.pod().Tolerations).To(ConsistOf(corev1.Toleration{Operator: corev1.TolerationOpExists}))
			Expect(i.pod().NodeSelector).To(Equal(map[string]string{"kubernetes.io/os": "linux"}))
			Expect(i.pod().PriorityClassName).To(Equal("system-node-critical"))
		})

		It("gets the name of its node and, optionally, the API server's address", func() {
			c := get().container()
			Expect(c.Args[:5]).To(HaveExactElements("run", "--node-name=$(NODE_NAME)", HavePrefix("--healthz-address="), "--take-over", "--keeper"))
			Expect(c.Env).To(ContainElement(corev1.EnvVar{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}))
			Expect(c.EnvFrom).To(ConsistOf(corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "usher-api-server"}, Optional: ptr.To(true)}}))
		})

		It("is updated with surge, and has enough time to drain", func() {
			i := get()
			Expect(i.daemon.Spec.UpdateStrategy).To(Equal(appsv1.DaemonSetUpdateStrategy{
				Type:          appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxSurge: ptr.To(intstr.FromInt32(1)), MaxUnavailable: ptr.To(intstr.FromInt32(0))},
			}))
			grace := time.Duration(*i.pod().TerminationGracePeriodSeconds) * time.Second
			Expect(grace).To(BeNumerically(">=", drainTimeout()+5*time.Second))
			Expect(grace).To(BeNumerically("<=", drainTimeout()+30*time.Second))
		})

		It("has liveness and readiness probes", func() {
			c := get().container()
			Expect(c.LivenessProbe).NotTo(BeNil())
			Expect(c.LivenessProbe.HTTPGet).To(Equal(&corev1.HTTPGetAction{Path: "/livez", Port: intstr.FromInt32(10256)}))
			Expect(c.ReadinessProbe).NotTo(BeNil())
			Expect(c.ReadinessProbe.Exec).NotTo(BeNil(), "over HTTP, the old Pod's usher would answer during an update")
			Expect(c.ReadinessProbe.Exec.Command[:2]).To(Equal([]string{"usher", "ready"}))
			Expect(c.StartupProbe).To(BeNil())
		})

		It("requests CPU and memory", func() {
			Expect(get().container().Resources.Requests).To(And(HaveKey(corev1.ResourceCPU), HaveKey(corev1.ResourceMemory)))
		})

		It("selects its own Pods", func() {
			i := get()
			labels := i.daemon.Spec.Template.Labels
			for key, value := range i.daemon.Spec.Selector.MatchLabels {
				Expect(labels).To(HaveKeyWithValue(key, value))
			}
			Expect(i.daemon.Spec.Selector.MatchLabels).To(HaveKey("app.kubernetes.io/instance"))
		})

		It("names an image with a version", func() {
			Expect(get().container().Image).To(MatchRegexp(`^ghcr\.io/usherproxy/usher:v\d`))
		})

		It("passes only flags that usher has", func() {
			for _, arg := range get().container().Args[1:] {
				expectFlag(arg)
			}
		})
	})
})
