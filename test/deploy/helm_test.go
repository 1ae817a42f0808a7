package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/usherproxy/usher/test/deploy/render"
)

// values parses values for the chart.
func values(text string) map[string]any {
	GinkgoHelper()
	out := map[string]any{}
	Expect(yaml.UnmarshalStrict([]byte(text), &out)).To(Succeed())
	return out
}

func chartFile(name string) string {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(deploy, "helm", "usher", name))
	Expect(err).NotTo(HaveOccurred())
	return string(text)
}

var _ = Describe("the chart", func() {
	DescribeTable("turns values into arguments", func(text string, want ...string) {
		args := chart(values(text)).container().Args
		Expect(args[:4]).To(HaveExactElements("run", "--node-name=$(NODE_NAME)", "--take-over", "--keeper"))
		Expect(args[4:]).To(HaveExactElements(want))
	},
		Entry("none", ""),
		Entry("portal", "portal: address", "--portal=address"),
		Entry("serviceProxyName", "serviceProxyName: usher", "--service-proxy-name=usher"),
		Entry("nodePortAddresses", "nodePortAddresses: [192.0.2.0/24, 'fd00::/8']", "--nodeport-addresses=192.0.2.0/24,fd00::/8"),
		Entry("nodePortAddresses primary", "nodePortAddresses: [primary]", "--nodeport-addresses=primary"),
		Entry("clusterCIDR", "clusterCIDR: [10.244.0.0/16, 'fd01::/48']", "--cluster-cidr=10.244.0.0/16,fd01::/48"),
		Entry("logLevel", "logLevel: debug", "--log-level=debug"),
		Entry("adminAddress", "adminAddress: '[::1]:10249'", "--admin-address=[::1]:10249"),
		Entry("drainTimeoutSeconds", "drainTimeoutSeconds: 60", "--drain-timeout=60s"),
		Entry("drainTimeoutSeconds 0", "drainTimeoutSeconds: 0", "--drain-timeout=0s"),
		Entry("kubeProxyConfig", "kubeProxyConfig: {configMap: kp, key: c.yaml}", "--config=/var/lib/kube-proxy/c.yaml"),
		Entry("extraArgs, last", "extraArgs: ['--quarantine=5s']\nlogLevel: error", "--log-level=error", "--quarantine=5s"),
	)

	It("gives the Pod the time to drain", func() {
		Expect(*chart(values("drainTimeoutSeconds: 600")).pod().TerminationGracePeriodSeconds).To(BeEquivalentTo(610))
	})

	DescribeTable("asks for health where it is served", func(address string, port int32) {
		c := chart(map[string]any{"healthzAddress": address}).container()
		Expect(c.Args).To(ContainElement("--healthz-address=" + address))
		Expect(c.LivenessProbe.HTTPGet.Port).To(Equal(intstr.FromInt32(port)))
		Expect(c.ReadinessProbe.HTTPGet.Port).To(Equal(intstr.FromInt32(port)))
	},
		Entry("on another port", "0.0.0.0:10356", int32(10356)),
		Entry("IPv6", "[::]:10356", int32(10356)),
		Entry("both", ":10356", int32(10356)),
	)

	It("tells the API server's address", func() {
		c := chart(values("apiServer: {host: 192.0.2.10, port: 8443}")).container()
		Expect(c.Env).To(ContainElements(
			corev1.EnvVar{Name: "KUBERNETES_SERVICE_HOST", Value: "192.0.2.10"},
			corev1.EnvVar{Name: "KUBERNETES_SERVICE_PORT", Value: "8443"}))
	})

	It("gives the legacy iptables what it needs", func() {
		i := chart(values("iptablesLegacy: true"))
		Expect(i.container().SecurityContext.Capabilities.Add).To(ConsistOf(BeEquivalentTo("NET_ADMIN"), BeEquivalentTo("NET_BIND_SERVICE"), BeEquivalentTo("NET_RAW")))
		Expect(i.pod().Volumes).To(ConsistOf(corev1.Volume{Name: "xtables-lock", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: "/run/xtables.lock", Type: ptr.To(corev1.HostPathFileOrCreate)}}}))
		Expect(i.container().VolumeMounts).To(ConsistOf(corev1.VolumeMount{Name: "xtables-lock", MountPath: "/run/xtables.lock"}))
	})

	It("gives the portal address the right to make a network namespace", func() {
		Expect(chart(values("portal: address\naddressNamespace: true")).container().SecurityContext.Capabilities.Add).To(
			ConsistOf(BeEquivalentTo("NET_ADMIN"), BeEquivalentTo("NET_BIND_SERVICE"), BeEquivalentTo("SYS_ADMIN")))
	})

	It("takes an image by digest", func() {
		digest := "sha256:" + strings.Repeat("ab", 32)
		i := chart(map[string]any{"image": map[string]any{"repository": "r.example/u", "tag": "v1", "digest": digest, "pullPolicy": "Always"}})
		Expect(i.container().Image).To(Equal("r.example/u@" + digest))
		Expect(i.container().ImagePullPolicy).To(Equal(corev1.PullAlways))
	})

	It("has the same version in both ways to install", func() {
		Expect(chart(nil).container().Image).To(Equal(kustomize("kustomize").container().Image))
	})

	It("leaves out what others create", func() {
		i := chart(values("serviceAccount: {create: false, name: theirs}\nrbac: {create: false}"))
		Expect(i.account).To(BeNil())
		Expect(i.role).To(BeNil())
		Expect(i.binding).To(BeNil())
		Expect(i.pod().ServiceAccountName).To(Equal("theirs"))
	})

	It("names objects as it is told", func() {
		i := chart(values("fullnameOverride: other\nserviceAccount: {annotations: {a: b}}\nimagePullSecrets: [{name: s}]\naffinity: {nodeAffinity: {}}\nextraEnv: [{name: A, value: b}]"))
		Expect(i.daemon.Name).To(Equal("other"))
		Expect(i.binding.RoleRef.Name).To(Equal("other"))
		Expect(i.binding.Subjects[0].Name).To(Equal("other"))
		Expect(i.account.Annotations).To(HaveKeyWithValue("a", "b"))
		Expect(i.pod().ImagePullSecrets).To(HaveLen(1))
		Expect(i.pod().Affinity).NotTo(BeNil())
		Expect(i.container().Env).To(ContainElement(corev1.EnvVar{Name: "A", Value: "b"}))
	})

	DescribeTable("refuses values that are wrong", func(text, field string) {
		_, _, err := render.Chart(filepath.Join(deploy, "helm", "usher"), values(text))
		Expect(err).To(MatchError(ContainSubstring(field)))
	},
		Entry("an unknown one", "tolerance: []", "tolerance"),
		Entry("an unknown one below", "image: {name: x}", "image"),
		Entry("portal", "portal: ipvs", "portal"),
		Entry("logLevel", "logLevel: loud", "logLevel"),
		Entry("apiServer.host with a scheme", "apiServer: {host: 'https://192.0.2.10'}", "apiServer/host"),
		Entry("apiServer.port", "apiServer: {port: 0}", "apiServer/port"),
		Entry("nodePortAddresses", "nodePortAddresses: [192.0.2.1]", "nodePortAddresses"),
		Entry("nodePortAddresses mixed", "nodePortAddresses: [primary, 192.0.2.0/24]", "nodePortAddresses"),
		Entry("clusterCIDR", "clusterCIDR: 10.244.0.0/16", "clusterCIDR"),
		Entry("serviceProxyName", "serviceProxyName: a b", "serviceProxyName"),
		Entry("healthzAddress", "healthzAddress: localhost", "healthzAddress"),
		Entry("drainTimeoutSeconds", "drainTimeoutSeconds: 30s", "drainTimeoutSeconds"),
		Entry("extraArgs", "extraArgs: [run]", "extraArgs"),
		Entry("a digest", "image: {digest: latest}", "image/digest"),
	)

	It("has each value in the schema and in values.yaml", func() {
		var schema struct {
			Properties map[string]any `json:"properties"`
		}
		Expect(json.Unmarshal([]byte(chartFile("values.schema.json")), &schema)).To(Succeed())
		defaults := values(chartFile("values.yaml"))
		for key := range schema.Properties {
			if key != "global" { // Helm's own
				Expect(defaults).To(HaveKey(key))
			}
		}
		for key := range defaults {
			Expect(schema.Properties).To(HaveKey(key))
		}
	})

	It("allows the portals that usher has, but for none", func() {
		var schema struct {
			Properties struct {
				Portal struct{ Enum []string }
			}
		}
		Expect(json.Unmarshal([]byte(chartFile("values.schema.json")), &schema)).To(Succeed())
		list := regexp.MustCompile(`how VIPs reach usher: ([a-z, ]+);`).FindStringSubmatch(usherHelp())
		Expect(list).NotTo(BeNil())
		Expect(append(schema.Properties.Portal.Enum, "none")).To(ConsistOf(strings.Split(list[1], ", ")))
	})

	It("uses each value", func() {
		templates, err := filepath.Glob(filepath.Join(deploy, "helm", "usher", "templates", "*"))
		Expect(err).NotTo(HaveOccurred())
		var all strings.Builder
		for _, file := range templates {
			all.WriteString(chartFile(filepath.Join("templates", filepath.Base(file))))
		}
		for key := range values(chartFile("values.yaml")) {
			Expect(all.String()).To(MatchRegexp(`(\.Values|\$v)\.` + regexp.QuoteMeta(key) + `\b`))
		}
	})

	DescribeTable("says what to do next", func(text, want string) {
		_, notes, err := render.Chart(filepath.Join(deploy, "helm", "usher"), values(text))
		Expect(err).NotTo(HaveOccurred())
		Expect(notes).To(ContainSubstring(want))
	},
		Entry("that the API server's address is missing", "", "The address of the API server is not in the values."),
		Entry("that kube-proxy has to go", "apiServer: {host: 192.0.2.10}", "kube-proxy must not run on the same nodes."),
		Entry("what is served", "serviceProxyName: mine", "service.kubernetes.io/service-proxy-name=mine"),
	)
})
