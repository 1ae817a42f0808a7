package deploy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/kube"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"github.com/usherproxy/usher/test/cluster/control"
	"github.com/usherproxy/usher/test/deploy/render"
	"github.com/usherproxy/usher/test/lab"
)

// operator is the module with the CustomResourceDefinition of PodMonitors. The test downloads this file, and go.mod does
// not require the module: none of its code is compiled.
const operator = "github.com/prometheus-operator/prometheus-operator@v0.92.1"

// podMonitors returns the definition.
func podMonitors() []byte {
	GinkgoHelper()
	var out []byte
	Eventually(func() (err error) {
		cmd := exec.Command("go", "mod", "download", "-json", operator)
		cmd.Stderr = GinkgoWriter
		out, err = cmd.Output()
		return err
	}).WithTimeout(3*time.Minute).WithPolling(5*time.Second).Should(Succeed(), func() string { return string(out) })
	var module struct{ Dir string }
	Expect(json.Unmarshal(out, &module)).To(Succeed())
	text, err := os.ReadFile(filepath.Join(module.Dir, "example", "prometheus-operator-crd", "monitoring.coreos.com_podmonitors.yaml"))
	Expect(err).NotTo(HaveOccurred())
	return text
}

// matrix holds values for the needs of various clusters, each on top of the defaults.
var matrix = map[string]string{
	"no values":                          "",
	"the portal nftables":                "portal: nftables",
	"the portal address":                 "portal: address",
	"legacy iptables":                    "portal: iptables\niptablesLegacy: true",
	"a configuration of kube-proxy":      "kubeProxyConfig: {configMap: kube-proxy}\niptablesLegacy: true",
	"a configuration":                    "config: {mode: nftables, detectLocalMode: BridgeInterface, detectLocal: {bridgeInterface: cni0}, conntrack: {maxPerCore: 0}}",
	"a proxy name":                       "serviceProxyName: mine\nhealthzAddress: 0.0.0.0:10356\nadminAddress: 127.0.0.1:10349",
	"IPv6":                               "healthzAddress: '[::]:10256'\nadminAddress: '[fd00::1]:10249'\napiServer: {host: 'fd00::10'}\nclusterCIDR: ['fd01::/48']",
	"resources":                          "resources: {requests: {cpu: 1, memory: 1Gi}, limits: {memory: 2Gi, cpu: 1500m}}",
	"no resources and tolerations":       "resources: null\npriorityClassName: ''\ntolerations: []\nnodeSelector: {}",
	"scheduling constraints":             "tolerations: [{key: a, operator: Equal, value: b, effect: NoExecute, tolerationSeconds: 60}]\nnodeSelector: {service-proxy: usher}\naffinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: service-proxy, operator: In, values: [usher]}]}]}}}",
	"no surge":                           "updateStrategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 25%}}",
	"updates on deletion":                "updateStrategy: {type: OnDelete}",
	"without a keeper":                   "keeper: false\nremoveRules: true\ndrainTimeoutSeconds: 0",
	"logs and environment":               "logLevel: debug\nlogFormat: text\nextraEnv: [{name: HOST_IP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}]\nextraArgs: ['--access-log=-']",
	"labels and secrets":                 "podLabels: {team: net}\npodAnnotations: {a: b}\nimagePullSecrets: [{name: registry}]\nserviceAccount: {annotations: {c: d}}\nconfig: {clusterCIDR: 10.244.0.0/16}",
	"an existing account":                "serviceAccount: {create: false, name: theirs}\nrbac: {create: false}\nfullnameOverride: other",
	"numeric names":                      "fullnameOverride: '123'\nserviceAccount: {name: '456'}\npriorityClassName: '789'\nkubeProxyConfig: {configMap: '1e3'}\nnetworkPolicy: {enabled: true}\nadminAddress: ':10249'\npodMonitor: {enabled: true}",
	"a numeric name and a configuration": "fullnameOverride: '123'\nconfig: {mode: nftables}",
	"a network policy":                   "networkPolicy: {enabled: true}",
	"a network policy with peers":        "adminAddress: ':65535'\nnetworkPolicy: {enabled: true, metricsFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}, podSelector: {}}, {ipBlock: {cidr: 192.0.2.0/24}}]}",
	"a Pod monitor":                      "adminAddress: ':10249'\npodMonitor: {enabled: true}",
	"a Pod monitor in another namespace": "adminAddress: '[::]:10349'\npodMonitor: {enabled: true, namespace: default, labels: {release: prometheus}, interval: 1m30s, scrapeTimeout: 10s}",
}

var _ = Describe("a real API server", Ordered, func() {
	var (
		plane  *control.Plane
		client dynamic.Interface
	)
	BeforeAll(func() {
		if os.Geteuid() != 0 {
			Skip("needs root, to make a network namespace")
		}
		Expect(control.Missing()).To(BeEmpty())
		binaries, err := control.Build(GinkgoWriter)
		Expect(err).NotTo(HaveOccurred())
		lab.Ask()
		ns, address := lab.New().Outside, netip.MustParseAddr("198.51.100.1")
		ns.Output("ip", "address", "add", address.String()+"/32", "dev", "lo")
		plane = control.Start(ns, address, binaries)
		client, err = dynamic.NewForConfig(plane.Config(control.Admin))
		Expect(err).NotTo(HaveOccurred())
	})

	// kinds returns the kinds that the API server's discovery lists.
	kinds := func() meta.RESTMapper {
		GinkgoHelper()
		groups, err := restmapper.GetAPIGroupResources(discovery.NewDiscoveryClientForConfigOrDie(plane.Config(control.Admin)))
		Expect(err).NotTo(HaveOccurred())
		return restmapper.NewDiscoveryRESTMapper(groups)
	}

	// apply applies objects as 'kubectl apply --server-side --validate=strict' does.
	apply := func(text []byte, dryRun ...string) {
		GinkgoHelper()
		mapper := kinds()
		for document := range strings.SplitSeq("\n"+string(text), "\n---\n") {
			object := &unstructured.Unstructured{}
			Expect(yaml.Unmarshal([]byte(document), &object.Object)).To(Succeed())
			if len(object.Object) == 0 {
				continue
			}
			kind := object.GroupVersionKind()
			mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
			Expect(err).NotTo(HaveOccurred(), document)
			body, err := object.MarshalJSON()
			Expect(err).NotTo(HaveOccurred())
			force := true
			_, err = client.Resource(mapping.Resource).Namespace(object.GetNamespace()).Patch(context.Background(), object.GetName(), types.ApplyPatchType, body,
				metav1.PatchOptions{DryRun: dryRun, FieldManager: "usher-test", FieldValidation: metav1.FieldValidationStrict, Force: &force})
			Expect(err).NotTo(HaveOccurred(), document)
		}
	}

	It("accepts the definition of PodMonitors", func() {
		apply(podMonitors())
		Eventually(func() error { // the API server may serve them before discovery lists them
			_, unlisted := client.Resource(schema.GroupVersionResource{Group: "monitoring.coreos.com", Version: "v1", Resource: "podmonitors"}).List(context.Background(), metav1.ListOptions{})
			_, omitted := kinds().RESTMapping(schema.GroupKind{Group: "monitoring.coreos.com", Kind: "PodMonitor"}, "v1")
			return cmp.Or(unlisted, omitted)
		}).WithTimeout(30 * time.Second).Should(Succeed())
	})

	for name, text := range matrix {
		It("accepts the chart's objects with "+name, func() {
			objects, _, err := render.Chart(filepath.Join(deploy, "helm", "usher"), values(text))
			Expect(err).NotTo(HaveOccurred())
			apply(objects, metav1.DryRunAll)
		})
	}

	for _, folder := range []string{"kustomize", "kustomize-kubeadm"} {
		It("accepts the objects of deploy/"+folder+" in a dry run", func() {
			objects, err := render.Kustomize(filepath.Join(deploy, folder))
			Expect(err).NotTo(HaveOccurred())
			apply(objects, metav1.DryRunAll)
		})
	}

	// there returns the existing objects of the kinds that the chart or Helm makes.
	there := func() (all []string) {
		GinkgoHelper()
		for _, r := range []schema.GroupVersionResource{
			{Version: "v1", Resource: "serviceaccounts"}, {Version: "v1", Resource: "configmaps"}, {Version: "v1", Resource: "secrets"}, {Version: "v1", Resource: "pods"},
			{Group: "apps", Version: "v1", Resource: "daemonsets"}, {Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
			{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}, {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
			{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"}, {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
			{Group: "monitoring.coreos.com", Version: "v1", Resource: "podmonitors"},
		} {
			list, err := client.Resource(r).List(context.Background(), metav1.ListOptions{})
			Expect(err).NotTo(HaveOccurred())
			for _, o := range list.Items {
				all = append(all, fmt.Sprintf("%s %s/%s", r.Resource, o.GetNamespace(), o.GetName()))
			}
		}
		return all
	}

	It("has a release installed, upgraded, rolled back and uninstalled, without leftovers", func() {
		Eventually(func() []string { return there() }).WithTimeout(30 * time.Second).Should(ContainElement("serviceaccounts kube-system/default")) // the controllers' own objects
		flags, kubeconfig, namespace := genericclioptions.NewConfigFlags(true), plane.Kubeconfig(control.Admin, plane.Server()), render.Namespace
		flags.KubeConfig, flags.Namespace = &kubeconfig, &namespace
		flags.WithWrapConfigFn(func(c *rest.Config) *rest.Config {
			c.Dial = plane.Config(control.Admin).Dial
			return c
		})
		helm := action.NewConfiguration()
		Expect(helm.Init(flags, namespace, "secret")).To(Succeed())
		source, err := loader.Load(filepath.Join(deploy, "helm", "usher"))
		Expect(err).NotTo(HaveOccurred())
		before := there()

		install := action.NewInstall(helm)
		install.ReleaseName, install.Namespace, install.WaitStrategy, install.Timeout = render.Release, namespace, kube.HookOnlyStrategy, time.Minute
		_, err = install.Run(source, values("apiServer: {host: 192.0.2.10}"))
		Expect(err).NotTo(HaveOccurred())
		installed := []string{"daemonsets kube-system/usher", "serviceaccounts kube-system/usher", "clusterroles /usher", "clusterrolebindings /usher"}
		Expect(there()).To(ContainElements(installed))
		args := func() []string {
			GinkgoHelper()
			daemon, err := plane.Client.AppsV1().DaemonSets(namespace).Get(context.Background(), render.Release, metav1.GetOptions{})
			Expect(err).NotTo(HaveOccurred())
			return daemon.Spec.Template.Spec.Containers[0].Args
		}
		original := args()

		upgrade := action.NewUpgrade(helm)
		upgrade.Namespace, upgrade.WaitStrategy, upgrade.Timeout = namespace, kube.HookOnlyStrategy, time.Minute
		_, err = upgrade.Run(render.Release, source, values("config: {mode: nftables}\nadminAddress: ':10249'\npodMonitor: {enabled: true}\nnetworkPolicy: {enabled: true}"))
		Expect(err).NotTo(HaveOccurred())
		more := []string{"configmaps kube-system/usher", "podmonitors kube-system/usher", "networkpolicies kube-system/usher"}
		Expect(there()).To(ContainElements(append(more, installed...)))
		Expect(args()).To(ContainElements("--config=/etc/usher/config.conf", "--admin-address=:10249"))

		upgrade.ResetThenReuseValues = true // docs/kubernetes.md has this flag for the rollback
		_, err = upgrade.Run(render.Release, source, values("removeRules: true"))
		Expect(err).NotTo(HaveOccurred())
		Expect(args()).To(ContainElements("--remove-rules", "--config=/etc/usher/config.conf", "--admin-address=:10249"))

		rollback := action.NewRollback(helm)
		rollback.Version, rollback.WaitStrategy, rollback.Timeout = 1, kube.HookOnlyStrategy, time.Minute
		Expect(rollback.Run(render.Release)).To(Succeed())
		Expect(args()).To(Equal(original))
		Expect(there()).NotTo(ContainElements(more))

		uninstall := action.NewUninstall(helm)
		uninstall.WaitStrategy, uninstall.Timeout = kube.HookOnlyStrategy, time.Minute
		_, err = uninstall.Run(render.Release)
		Expect(err).NotTo(HaveOccurred())
		Eventually(there).WithTimeout(30 * time.Second).Should(ConsistOf(before))
	})
})
