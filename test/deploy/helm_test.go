package deploy

import (
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
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
		health := "--healthz-address=:10256"
		if strings.Contains(text, "healthzAddress: ':10356'") {
			health = "--healthz-address=:10356"
		}
		Expect(args[:5]).To(HaveExactElements("run", "--node-name=$(NODE_NAME)", health, "--take-over", "--keeper"))
		Expect(args[5:]).To(HaveExactElements(want))
	},
		Entry("none", ""),
		Entry("keeper null, as with values of an older release", "keeper: null"),
		Entry("portal", "portal: address", "--portal=address"),
		Entry("serviceProxyName", "serviceProxyName: usher", "--service-proxy-name=usher"),
		Entry("nodePortAddresses", "nodePortAddresses: [192.0.2.0/24, 'fd00::/8']", "--nodeport-addresses=192.0.2.0/24,fd00::/8"),
		Entry("nodePortAddresses primary", "nodePortAddresses: [primary, localhost]", "--nodeport-addresses=primary,localhost"),
		Entry("clusterCIDR", "clusterCIDR: [10.244.0.0/16, 'fd01::/48']", "--cluster-cidr=10.244.0.0/16,fd01::/48"),
		Entry("logLevel", "logLevel: debug", "--log-level=debug"),
		Entry("adminAddress", "adminAddress: '[::1]:10249'", "--admin-address=[::1]:10249"),
		Entry("drainTimeoutSeconds", "drainTimeoutSeconds: 60", "--drain-timeout=60s"),
		Entry("removeRules", "removeRules: true", "--remove-rules"),
		Entry("config", "config: {mode: nftables}", "--config=/etc/usher/config.conf"),
		Entry("logFormat", "logFormat: json", "--log-format=json"),
		Entry("drainTimeoutSeconds 0", "drainTimeoutSeconds: 0", "--drain-timeout=0s"),
		Entry("kubeProxyConfig", "kubeProxyConfig: {configMap: kp, key: c.yaml}",
			"--config=/var/lib/kube-proxy/c.yaml", "--admin-address=127.0.0.1:10249"),
		Entry("kubeProxyConfig and addresses", "kubeProxyConfig: {configMap: kp}\nhealthzAddress: ':10356'\nadminAddress: ':9100'",
			"--config=/var/lib/kube-proxy/config.conf", "--admin-address=:9100"),
		Entry("kubeProxyConfig and apiServer", "kubeProxyConfig: {configMap: kp}\napiServer: {host: 192.0.2.10}",
			"--config=/var/lib/kube-proxy/config.conf", "--server=https://192.0.2.10:6443", "--admin-address=127.0.0.1:10249"),
		Entry("kubeProxyConfig and apiServer, IPv6", "kubeProxyConfig: {configMap: kp}\napiServer: {host: 'fd00::1', port: 443}",
			"--config=/var/lib/kube-proxy/config.conf", "--server=https://[fd00::1]:443", "--admin-address=127.0.0.1:10249"),
		Entry("enabled, by the condition of a parent chart", "enabled: true"),
		Entry("extraArgs, last", "extraArgs: ['--quarantine=5s']\nlogLevel: error", "--log-level=error", "--quarantine=5s"),
	)

	It("can run usher without a keeper", func() {
		Expect(chart(values("keeper: false")).container().Args).To(HaveExactElements("run", "--node-name=$(NODE_NAME)", "--healthz-address=:10256", "--take-over"))
	})

	It("sets the pull policy for the tag latest, for which Kubernetes has another default", func() {
		i := chart(values("image: {tag: latest}"))
		Expect(i.container().ImagePullPolicy).To(Equal(corev1.PullIfNotPresent))
		Expect(i.pod().InitContainers[0].ImagePullPolicy).To(Equal(corev1.PullIfNotPresent))
	})

	It("has no init container with setConntrack: false", func() {
		Expect(chart(values("setConntrack: false")).pod().InitContainers).To(BeEmpty())
	})

	It("contains a configuration that usher accepts, and replaces Pods when it changes", func() {
		i := chart(values("config: {mode: nftables, nodePortAddresses: [primary], nftables: {syncPeriod: 1m}}"))
		Expect(i.config.Name).To(Equal(i.pod().Volumes[0].ConfigMap.Name))
		Expect(i.container().VolumeMounts).To(ConsistOf(corev1.VolumeMount{Name: "config", MountPath: "/etc/usher", ReadOnly: true}))
		file := filepath.Join(GinkgoT().TempDir(), "config.conf")
		Expect(os.WriteFile(file, []byte(i.config.Data["config.conf"]), 0o600)).To(Succeed())
		out, err := exec.Command(usherProgram(), "run", "--init-only", "--manifests="+deploy, "--config="+file).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "%s", out)
		Expect(string(out)).To(BeEmpty(), "no field without an effect")
		checksum := func(text string) string {
			return chart(values(text)).daemon.Spec.Template.Annotations["checksum/config"]
		}
		Expect(checksum("config: {mode: nftables}")).NotTo(Or(BeEmpty(), Equal(checksum("config: {mode: iptables}"))))
	})

	DescribeTable("opens all ports to all clients, except for the metrics port", func(address string, admin int32) {
		policy := chart(map[string]any{"adminAddress": address, "networkPolicy": map[string]any{"enabled": true,
			"metricsFrom": []any{map[string]any{"podSelector": map[string]any{}}}}}).policy.Spec
		Expect(policy.Ingress).To(HaveLen(2))
		Expect(policy.Ingress[0].From).To(BeEmpty())
		Expect(policy.Ingress[1].From).NotTo(BeEmpty())
		for _, port := range []int32{1, 80, admin - 1, admin, admin + 1, 30000, 65535} {
			open := false
			for _, p := range policy.Ingress[0].Ports {
				open = open || *p.Protocol == corev1.ProtocolTCP && p.Port.IntVal <= port && port <= *p.EndPort
			}
			Expect(open).To(Equal(port != admin && port <= 65535 && port > 0), "%d", port)
		}
		Expect(policy.Ingress[1].Ports[0].Port.IntVal).To(Equal(admin))
	},
		Entry("the default", "", int32(10249)),
		Entry("another", "[::]:9100", int32(9100)),
		Entry("the first", ":1", int32(1)),
		Entry("the last", ":65535", int32(65535)),
	)

	It("makes Prometheus scrape each node's address under the node's name", func() {
		m := chart(values("adminAddress: ':10349'\npodMonitor: {enabled: true}")).monitor
		endpoint := m["spec"].(map[string]any)["podMetricsEndpoints"].([]any)[0].(map[string]any)
		got := map[string]string{}
		for ip, want := range map[string]string{"192.0.2.1": "192.0.2.1:10349", "2001:db8::1": "[2001:db8::1]:10349"} {
			for init, dropped := range map[string]bool{"false": false, "true": true} { // there is a target for each container
				labels := map[string]string{"__meta_kubernetes_pod_ip": ip, "__meta_kubernetes_pod_node_name": "node-1", "__meta_kubernetes_pod_container_init": init}
				drops := false
				for _, r := range endpoint["relabelings"].([]any) { // as Prometheus does: anchored, and without a match nothing changes
					rule := r.(map[string]any)
					pattern, _ := rule["regex"].(string)
					replacement, _ := rule["replacement"].(string)
					re := regexp.MustCompile("^(?:" + cmp.Or(pattern, "(.*)") + ")$")
					switch in := labels[rule["sourceLabels"].([]any)[0].(string)]; {
					case !re.MatchString(in):
					case rule["action"] == "drop":
						drops = true
					default:
						got[rule["targetLabel"].(string)] = re.ReplaceAllString(in, cmp.Or(replacement, "$1"))
					}
				}
				Expect(drops).To(Equal(dropped))
				Expect(got).To(Equal(map[string]string{"__address__": want, "instance": "node-1"}))
			}
		}
	})

	It("passes 'helm lint' without warnings", func() {
		for name, text := range matrix {
			for _, m := range lint.RunAll(filepath.Join(deploy, "helm", "usher"), values(text), render.Namespace).Messages {
				Expect(m.Severity).To(BeNumerically("<", support.WarningSev), "%s: %s", name, m)
			}
		}
	})

	It("gives the Pod enough time to drain", func() {
		Expect(*chart(values("drainTimeoutSeconds: 600")).pod().TerminationGracePeriodSeconds).To(BeEquivalentTo(610))
	})

	DescribeTable("probes the address at which health is served", func(address string, port int32) {
		c := chart(map[string]any{"healthzAddress": address}).container()
		Expect(c.Args).To(ContainElement("--healthz-address=" + address))
		Expect(c.LivenessProbe.HTTPGet.Port).To(Equal(intstr.FromInt32(port)))
		Expect(c.ReadinessProbe.Exec.Command).To(Equal([]string{"usher", "ready", "--healthz-address=" + address}))
	},
		Entry("on another port", "0.0.0.0:10356", int32(10356)),
		Entry("IPv6", "[::]:10356", int32(10356)),
		Entry("both families", ":10356", int32(10356)),
	)

	It("passes the API server's address to usher", func() {
		c := chart(values("apiServer: {host: 192.0.2.10, port: 8443}")).container()
		Expect(c.Env).To(ContainElements(
			corev1.EnvVar{Name: "KUBERNETES_SERVICE_HOST", Value: "192.0.2.10"},
			corev1.EnvVar{Name: "KUBERNETES_SERVICE_PORT", Value: "8443"}))
	})

	It("gives legacy iptables its capability and lock file", func() {
		i := chart(values("iptablesLegacy: true"))
		Expect(i.container().SecurityContext.Capabilities.Add).To(ConsistOf(BeEquivalentTo("NET_ADMIN"), BeEquivalentTo("NET_BIND_SERVICE"), BeEquivalentTo("NET_RAW")))
		Expect(i.pod().Volumes).To(ConsistOf(corev1.Volume{Name: "xtables-lock", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: "/run/xtables.lock", Type: ptr.To(corev1.HostPathFileOrCreate)}}}))
		Expect(i.container().VolumeMounts).To(ConsistOf(corev1.VolumeMount{Name: "xtables-lock", MountPath: "/run/xtables.lock"}))
	})

	It("supports an image digest", func() {
		digest := "sha256:" + strings.Repeat("ab", 32)
		i := chart(map[string]any{"image": map[string]any{"repository": "r.example/u", "tag": "v1", "digest": digest, "pullPolicy": "Always"}})
		Expect(i.container().Image).To(Equal("r.example/u@" + digest))
		Expect(i.container().ImagePullPolicy).To(Equal(corev1.PullAlways))
	})

	It("has the same image version as kustomize", func() {
		Expect(chart(nil).container().Image).To(Equal(kustomize("kustomize").container().Image))
	})

	It("omits the account and role that the user creates", func() {
		i := chart(values("serviceAccount: {create: false, name: theirs}\nrbac: {create: false}"))
		Expect(i.account).To(BeNil())
		Expect(i.role).To(BeNil())
		Expect(i.binding).To(BeNil())
		Expect(i.pod().ServiceAccountName).To(Equal("theirs"))
	})

	It("uses the names and settings in the values", func() {
		i := chart(values("fullnameOverride: other\nserviceAccount: {annotations: {a: b}}\nimagePullSecrets: [{name: s}]\naffinity: {nodeAffinity: {}}\nextraEnv: [{name: A, value: b}]"))
		Expect(i.daemon.Name).To(Equal("other"))
		Expect(i.binding.RoleRef.Name).To(Equal("other"))
		Expect(i.binding.Subjects[0].Name).To(Equal("other"))
		Expect(i.account.Annotations).To(HaveKeyWithValue("a", "b"))
		Expect(i.pod().ImagePullSecrets).To(HaveLen(1))
		Expect(i.pod().Affinity).NotTo(BeNil())
		Expect(i.container().Env).To(ContainElement(corev1.EnvVar{Name: "A", Value: "b"}))
		m := chart(values("adminAddress: ':10249'\npodMonitor: {enabled: true, namespace: '123'}")).monitor
		Expect(m["metadata"]).To(HaveKeyWithValue("namespace", "123"))
	})

	DescribeTable("rejects invalid values", func(text, field string) {
		_, _, err := render.Chart(filepath.Join(deploy, "helm", "usher"), values(text))
		Expect(err).To(MatchError(ContainSubstring(field)))
	},
		Entry("an unknown value", "tolerance: []", "tolerance"),
		Entry("an unknown nested value", "image: {name: x}", "image"),
		Entry("portal", "portal: ipvs", "portal"),
		Entry("logLevel", "logLevel: loud", "logLevel"),
		Entry("apiServer.host with a scheme", "apiServer: {host: 'https://192.0.2.10'}", "apiServer/host"),
		Entry("apiServer.port", "apiServer: {port: 0}", "apiServer/port"),
		Entry("nodePortAddresses", "nodePortAddresses: [192.0.2.1]", "nodePortAddresses"),
		Entry("nodePortAddresses with an unknown word", "nodePortAddresses: [primary, here]", "nodePortAddresses"),
		Entry("clusterCIDR", "clusterCIDR: 10.244.0.0/16", "clusterCIDR"),
		Entry("serviceProxyName", "serviceProxyName: a b", "serviceProxyName"),
		Entry("healthzAddress", "healthzAddress: localhost", "healthzAddress"),
		Entry("drainTimeoutSeconds", "drainTimeoutSeconds: 30s", "drainTimeoutSeconds"),
		Entry("extraArgs", "extraArgs: [run]", "extraArgs"),
		Entry("logFormat", "logFormat: xml", "logFormat"),
		Entry("keeper", "keeper: 'yes'", "keeper"),
		Entry("a port", "adminAddress: ':65536'", "adminAddress"),
		Entry("config of another kind", "config: {kind: KubeletConfiguration}", "config/kind"),
		Entry("the health address in config", "config: {healthzBindAddress: 0.0.0.0:10356}", "set healthzAddress"),
		Entry("the metrics address in config", "config: {metricsBindAddress: 0.0.0.0:9100}", "set adminAddress"),
		Entry("the health address on loopback", "healthzAddress: '127.0.0.1:10256'", "healthzAddress: the kubelet has to reach it"),
		Entry("the health address on loopback, IPv6", "healthzAddress: '[::1]:10256'", "healthzAddress: the kubelet has to reach it"),
		Entry("two configurations", "config: {mode: nftables}\nkubeProxyConfig: {configMap: kube-proxy}", "only one of them"),
		Entry("a toleration", "tolerations: [{operator: Exist}]", "tolerations/0/operator"),
		Entry("a quantity", "resources: {limits: {memory: 64 MB}}", "resources/limits/memory"),
		Entry("maxSurge", "updateStrategy: {rollingUpdate: {maxSurge: one}}", "maxSurge"),
		Entry("a network policy peer", "networkPolicy: {metricsFrom: [{cidr: 192.0.2.0/24}]}", "networkPolicy/metricsFrom/0"),
		Entry("a monitor interval", "podMonitor: {interval: 30}", "podMonitor/interval"),
		Entry("a monitor of the default address, which is loopback", "podMonitor: {enabled: true}", "adminAddress has to be one that Prometheus can reach"),
		Entry("a monitor of a loopback address", "adminAddress: '[::1]:10249'\npodMonitor: {enabled: true}", "adminAddress has to be"),
		Entry("a digest", "image: {digest: latest}", "image/digest"),
	)

	It("has each value in the schema and in values.yaml", func() {
		var schema struct {
			Properties map[string]any `json:"properties"`
		}
		Expect(json.Unmarshal([]byte(chartFile("values.schema.json")), &schema)).To(Succeed())
		defaults := values(chartFile("values.yaml"))
		for key := range schema.Properties {
			if key != "global" && key != "enabled" { // of parent charts
				Expect(defaults).To(HaveKey(key))
			}
		}
		for key := range defaults {
			Expect(schema.Properties).To(HaveKey(key))
		}
	})

	It("allows all portals of usher except none", func() {
		var schema struct {
			Properties struct {
				Portal struct{ Enum []string }
			}
		}
		Expect(json.Unmarshal([]byte(chartFile("values.schema.json")), &schema)).To(Succeed())
		list := regexp.MustCompile(`How VIP traffic reaches usher: ([a-z, ]+)\.`).FindStringSubmatch(strings.Join(strings.Fields(usherHelp()), " "))
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

	DescribeTable("prints notes on the next steps", func(text, want string) {
		_, notes, err := render.Chart(filepath.Join(deploy, "helm", "usher"), values(text))
		Expect(err).NotTo(HaveOccurred())
		Expect(notes).To(ContainSubstring(want))
	},
		Entry("the API server's address is missing", "", "The address of the API server is not set."),
		Entry("kube-proxy must not run", "apiServer: {host: 192.0.2.10}", "kube-proxy must not run on the same nodes."),
		Entry("rules stay", "", "'usher cleanup' removes them."),
		Entry("rules are removed", "removeRules: true", "Start another service\nproxy there first"),
		Entry("the label of served Services", "serviceProxyName: mine", "service.kubernetes.io/service-proxy-name=mine"),
	)
})
