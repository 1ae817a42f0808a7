package kubeproxy_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/usherproxy/usher/cmd/usher/daemon"
	. "github.com/usherproxy/usher/cmd/usher/daemon/kubeproxy"
)

func TestKubeproxy(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "cmd/usher/daemon/kubeproxy")
}

const header = "apiVersion: " + APIVersion + "\nkind: " + Kind + "\n"

// flags maps flags of 'usher run' to values.
type flags = map[string]string

// are matches Settings that equal want. The Flags of want may be nil.
func are(want Settings) OmegaMatcher {
	if want.Flags == nil {
		want.Flags = flags{}
	}
	return Equal(want)
}

// write writes a file and returns its path.
func write(text string) string {
	GinkgoHelper()
	path := filepath.Join(GinkgoT().TempDir(), "config.conf")
	Expect(os.WriteFile(path, []byte(text), 0o600)).To(Succeed())
	return path
}

// read reads a valid file with the header and body.
func read(body string) (*Settings, []string) {
	GinkgoHelper()
	s, warnings, err := Read(write(header+body), nil)
	Expect(err).NotTo(HaveOccurred())
	return s, warnings
}

var _ = Describe("Read", func() {
	DescribeTable("accepts", func(body string, want Settings) {
		s, warnings := read(body)
		Expect(*s).To(are(want))
		Expect(warnings).To(BeEmpty())
	},
		Entry("a file without settings", "", Settings{}),
		Entry("clientConnection", "clientConnection: {kubeconfig: /etc/k, acceptContentTypes: 'application/json,application/cbor', contentType: application/json, qps: 2.5, burst: 7}",
			Settings{Flags: flags{"kubeconfig": "/etc/k"}, AcceptContentTypes: "application/json,application/cbor", ContentType: "application/json", QPS: 2.5, Burst: 7}),
		Entry("a negative qps as unlimited", "clientConnection: {qps: -1}", Settings{QPS: -1}),
		Entry("hostnameOverride, trimmed and in lower case", "hostnameOverride: ' Worker-1 '", Settings{Flags: flags{"node-name": "worker-1"}}),

		Entry("healthzBindAddress with a port", "healthzBindAddress: 127.0.0.1:8080", Settings{Flags: flags{"healthz-address": "127.0.0.1:8080"}}),
		Entry("healthzBindAddress without a port", "healthzBindAddress: 0.0.0.0", Settings{Flags: flags{"healthz-address": "0.0.0.0:10256"}}),
		Entry("healthzBindAddress IPv6 with a port", "healthzBindAddress: '[::1]:8080'", Settings{Flags: flags{"healthz-address": "[::1]:8080"}}),
		Entry("healthzBindAddress IPv6 without a port", "healthzBindAddress: '::'", Settings{Flags: flags{"healthz-address": "[::]:10256"}}),
		Entry("metricsBindAddress with a port", "metricsBindAddress: 0.0.0.0:9", Settings{Flags: flags{"admin-address": "0.0.0.0:9"}}),
		Entry("metricsBindAddress without a port", "metricsBindAddress: 0.0.0.0", Settings{Flags: flags{"admin-address": "0.0.0.0:10249"}}),
		Entry("bindAddressHardFail", "bindAddressHardFail: true", Settings{Flags: flags{"bind-address-hard-fail": "true"}}),

		Entry("bindAddress 0.0.0.0, which is the default", "bindAddress: 0.0.0.0", Settings{}),
		Entry("bindAddress ::, which makes the default addresses IPv6", "bindAddress: '::'",
			Settings{Flags: flags{"healthz-address": "[::]:10256", "admin-address": "[::1]:10249"}}),
		Entry("bindAddress ::, which does not change configured addresses", "bindAddress: '::'\nhealthzBindAddress: 0.0.0.0",
			Settings{Flags: flags{"healthz-address": "0.0.0.0:10256", "admin-address": "[::1]:10249"}}),
		Entry("an IPv6 bindAddress, which makes the default addresses IPv6", "bindAddress: fd00::1\nhealthzBindAddress: 0.0.0.0",
			Settings{Flags: flags{"healthz-address": "0.0.0.0:10256", "admin-address": "[::1]:10249"}, NodeIP: netip.MustParseAddr("fd00::1")}),
		Entry("bindAddress as the primary address", "bindAddress: 192.0.2.1\nnodePortAddresses: [primary]",
			Settings{Flags: flags{"nodeport-addresses": "primary"}, NodeIP: netip.MustParseAddr("192.0.2.1")}),

		Entry("nodePortAddresses with keywords and networks", "nodePortAddresses: [localhost, 192.0.2.0/24, primary]", Settings{Flags: flags{"nodeport-addresses": "localhost,192.0.2.0/24,primary"}}),
		Entry("nodePortAddresses: primary", "nodePortAddresses: [primary]", Settings{Flags: flags{"nodeport-addresses": "primary"}}),
		Entry("nodePortAddresses: networks", "nodePortAddresses: [192.0.2.7/24, 'fd00::/8']",
			Settings{Flags: flags{"nodeport-addresses": "192.0.2.0/24,fd00::/8"}}),
		Entry("nodePortAddresses: an empty list", "nodePortAddresses: []", Settings{}),
		Entry("clusterCIDR", "clusterCIDR: 10.244.0.0/16", Settings{Flags: flags{"cluster-cidr": "10.244.0.0/16"}}),
		Entry("clusterCIDR of both families", "clusterCIDR: 'fd01::/48, 10.244.0.0/16'\ndetectLocalMode: ClusterCIDR",
			Settings{Flags: flags{"cluster-cidr": "fd01::/48,10.244.0.0/16"}}),
		Entry("detectLocalMode NodeCIDR", "detectLocalMode: NodeCIDR", Settings{}),
		Entry("detectLocalMode BridgeInterface", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: bridge-12345678}", Settings{PodInterfaces: "bridge-12345678"}),
		Entry("detectLocalMode InterfaceNamePrefix", "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}", Settings{PodInterfaces: "cali+"}),

		Entry("portRange FIRST-LAST", "portRange: 30000-31000", Settings{Flags: flags{"proxy-port-range": "30000-31000"}}),
		Entry("portRange FIRST+COUNT", "portRange: 30000+10", Settings{Flags: flags{"proxy-port-range": "30000-30010"}}),
		Entry("portRange of one port", "portRange: '30000'", Settings{Flags: flags{"proxy-port-range": "30000-30000"}}),
		Entry("portRange up to 65535", "portRange: 1-65535", Settings{Flags: flags{"proxy-port-range": "1-65535"}}),
		Entry("portRange 0-0", "portRange: 0-0", Settings{}),
		Entry("portRange 0", "portRange: '0'", Settings{}),

		Entry("logging: verbosity 0", "logging: {verbosity: 0}", Settings{}),
		Entry("logging: verbosity 1", "logging: {verbosity: 1}", Settings{Flags: flags{"log-level": "info"}}),
		Entry("logging: verbosity 3", "logging: {verbosity: 3}", Settings{Flags: flags{"log-level": "info"}}),
		Entry("logging: verbosity 4", "logging: {verbosity: 4}", Settings{Flags: flags{"log-level": "debug"}}),
		Entry("logging: verbosity 10", "logging: {verbosity: 10}", Settings{Flags: flags{"log-level": "debug"}}),
		Entry("logging: format text", "logging: {format: text}", Settings{Flags: flags{"log-format": "text"}}),
		Entry("logging: format json", "logging: {format: json}", Settings{Flags: flags{"log-format": "json"}}),

		Entry("conntrack", "conntrack: {maxPerCore: 1000, min: 2000, tcpEstablishedTimeout: 1h, tcpCloseWaitTimeout: 2m, udpTimeout: 3s, udpStreamTimeout: 4s, tcpBeLiberal: true}",
			Settings{Flags: flags{"udp-idle-timeout": "4s"}, Conntrack: &daemon.Conntrack{MaxPerCore: 1000, Min: 2000, TCPEstablished: time.Hour, TCPCloseWait: 2 * time.Minute, UDP: 3 * time.Second, UDPStream: 4 * time.Second, TCPBeLiberal: true}}),
		Entry("conntrack as kubeadm writes it", "conntrack: {maxPerCore: null, min: null, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null}", Settings{}),
		Entry("conntrack with some of its fields", "conntrack: {maxPerCore: 0, tcpCloseWaitTimeout: 0s}", Settings{Conntrack: &daemon.Conntrack{Min: 131072, TCPEstablished: 24 * time.Hour}}),

		Entry("an empty mode", "mode: ''", Settings{}),
		Entry("mode userspace", "mode: userspace", Settings{}),
		Entry("mode ipvs", "mode: ipvs", Settings{}),
		Entry("mode ipvs with a scheduler", "mode: ipvs\nipvs: {scheduler: wlc, syncPeriod: 30s, minSyncPeriod: 1s}",
			Settings{Flags: flags{"scheduler": "wlc", "portal-check-interval": "30s", "max-sync-delay": "1s"}}),
		Entry("a scheduler that usher names differently", "mode: ipvs\nipvs: {scheduler: mh}", Settings{Flags: flags{"scheduler": "maglev"}}),
		Entry("mode iptables", "mode: iptables", Settings{Flags: flags{"portal": "iptables"}}),
		Entry("mode nftables, whose node ports are on the primary addresses", "mode: nftables", Settings{Flags: flags{"portal": "nftables", "nodeport-addresses": "primary"}}),
		Entry("mode nftables with nodePortAddresses", "mode: nftables\nnodePortAddresses: [0.0.0.0/0]",
			Settings{Flags: flags{"portal": "nftables", "nodeport-addresses": "0.0.0.0/0"}}),
		Entry("bindAddress as the primary address with mode nftables", "bindAddress: 192.0.2.1\nmode: nftables",
			Settings{Flags: flags{"portal": "nftables", "nodeport-addresses": "primary"}, NodeIP: netip.MustParseAddr("192.0.2.1")}),

		Entry("configSyncPeriod", "configSyncPeriod: 15m0s", Settings{Resync: 15 * time.Minute}),
		Entry("periods without a mode", "iptables: {syncPeriod: 30s, minSyncPeriod: 1s}", Settings{Flags: flags{"portal-check-interval": "30s", "max-sync-delay": "1s"}}),
		Entry("periods of userspace", "mode: userspace\niptables: {syncPeriod: 30s}", Settings{Flags: flags{"portal-check-interval": "30s"}}),
		Entry("periods of iptables", "mode: iptables\niptables: {minSyncPeriod: 2s}", Settings{Flags: flags{"portal": "iptables", "max-sync-delay": "2s"}}),
		Entry("periods of nftables", "mode: nftables\nnftables: {syncPeriod: 30s, minSyncPeriod: 1s}\niptables: {syncPeriod: 0s}",
			Settings{Flags: flags{"portal": "nftables", "nodeport-addresses": "primary", "portal-check-interval": "30s", "max-sync-delay": "1s"}}),
		Entry("localhostNodePorts: true, which is usher's behavior", "iptables: {localhostNodePorts: true}", Settings{}),
		Entry("the default of a field of the removed userspace mode", "udpIdleTimeout: 0s", Settings{}),
	)

	DescribeTable("warns about", func(body string, want ...string) {
		_, warnings := read(body)
		for i := range want {
			want[i] = "config.conf: " + want[i]
		}
		for i, w := range warnings {
			warnings[i] = w[strings.Index(w, "config.conf: "):]
		}
		Expect(warnings).To(HaveExactElements(want))
	},
		Entry("a field without effect", "oomScoreAdj: -999",
			"oomScoreAdj: -999 has no effect: usher does not read an OOM score; set it where usher is started (kubelet: priority class, systemd: OOMScoreAdjust)"),
		Entry("each field without effect", "enableProfiling: true\niptables: {masqueradeBit: 3}",
			"enableProfiling: true has no effect: usher serves no /debug/pprof",
			"iptables.masqueradeBit: 3 has no effect: usher does not masquerade, and uses its own mark (--mark)"),
		Entry("unknown fields, as kube-proxy does", "clusterCIRD: 10.0.0.0/8\nMode: iptables\niptables: {new: 0}",
			`Mode: "iptables" has no effect: unknown field`,
			`clusterCIRD: "10.0.0.0/8" has no effect: unknown field`,
			"iptables.new: 0 has no effect: unknown field"),
		Entry("feature gates", "featureGates: {One: true, Two: false, Three.Dotted: true}",
			"featureGates.One: true has no effect: usher has no feature gates",
			"featureGates.Three.Dotted: true has no effect: usher has no feature gates",
			"featureGates.Two: false has no effect: usher has no feature gates"),
		Entry("a list without effect", "logging: {vmodule: [{filePattern: a, verbosity: 2}]}",
			`logging.vmodule: [{"filePattern":"a","verbosity":2}] has no effect: usher has one log level for everything`),
		Entry("bindAddress without nodePortAddresses primary", "bindAddress: 192.0.2.1",
			`bindAddress: "192.0.2.1" has no effect: neither usher nor kube-proxy listens there; it is the node address, used only with nodePortAddresses [primary]`),
		Entry("an IPv6 bindAddress without default addresses", "bindAddress: fd00::1\nhealthzBindAddress: 0.0.0.0\nmetricsBindAddress: 0.0.0.0",
			`bindAddress: "fd00::1" has no effect: neither usher nor kube-proxy listens there; it is the node address, used only with nodePortAddresses [primary]`),
		Entry("the periods of another mode", "mode: nftables\niptables: {syncPeriod: 30s, minSyncPeriod: 0s}\nnftables: {syncPeriod: 20s}",
			`iptables.syncPeriod: "30s" has no effect: mode is "nftables", which uses the periods in section nftables`),
		Entry("the IPVS periods without mode ipvs", "ipvs: {syncPeriod: 30s}", `ipvs.syncPeriod: "30s" has no effect: mode is "", which uses the periods in section iptables`),
		Entry("the IPVS scheduler without mode ipvs", "mode: iptables\nipvs: {scheduler: lc}", `ipvs.scheduler: "lc" has no effect: mode is "iptables", not ipvs; --scheduler applies to all modes`),
		Entry("an IPVS scheduler that usher does not have", "mode: ipvs\nipvs: {scheduler: lblc}", `ipvs.scheduler: "lblc" has no effect: usher has no such scheduler; --scheduler applies`),
		Entry("settings specific to IPVS", "mode: ipvs\nipvs: {strictARP: true, tcpTimeout: 900s, excludeCIDRs: [10.0.0.0/8]}",
			`ipvs.excludeCIDRs: ["10.0.0.0/8"] has no effect: usher does not use IPVS, and does not change rules of other programs`,
			"ipvs.strictARP: true has no effect: usher does not use IPVS; with --portal=address, set net.ipv4.conf.all.arp_ignore=1 instead",
			`ipvs.tcpTimeout: "900s" has no effect: usher does not use IPVS; use --connection-idle-timeout for idle connections`),
		Entry("localhostNodePorts: false", "iptables: {localhostNodePorts: false}",
			"iptables.localhostNodePorts: false has no effect: usher also serves node ports on loopback; use nodePortAddresses to exclude it"),
		Entry("settings of another detectLocalMode", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: br0, interfaceNamePrefix: 'no name'}\nclusterCIDR: 10.244.0.0/16",
			`clusterCIDR: "10.244.0.0/16" has no effect: detectLocalMode is BridgeInterface, not ClusterCIDR`,
			`detectLocal.interfaceNamePrefix: "no name" has no effect: detectLocalMode is "BridgeInterface", not InterfaceNamePrefix`),
		Entry("an interface without a detectLocalMode", "detectLocal: {bridgeInterface: br0}",
			`detectLocal.bridgeInterface: "br0" has no effect: detectLocalMode is "", not BridgeInterface`),
		Entry("a removed field", "udpIdleTimeout: 250ms", `udpIdleTimeout: "250ms" has no effect: the field was removed in Kubernetes 1.26`),
	)

	It("ignores a clusterCIDR that kube-proxy would ignore", func() {
		s, _ := read("detectLocalMode: NodeCIDR\nclusterCIDR: 10.244.0.0/16")
		Expect(s.Flags).To(BeEmpty())
	})

	DescribeTable("refuses", func(text string, want ...string) {
		if !strings.HasPrefix(text, "#raw\n") {
			text = header + text
		}
		path := write(strings.TrimPrefix(text, "#raw\n"))
		s, warnings, err := Read(path, nil)
		Expect(err).To(HaveOccurred())
		Expect(s).To(BeNil())
		Expect(warnings).To(BeEmpty())
		lines := strings.Split(err.Error(), "\n")
		Expect(lines).To(HaveLen(len(want)), err.Error())
		for i, line := range lines {
			Expect(line).To(HavePrefix(path + ": "))
			Expect(line).To(ContainSubstring(want[i]))
		}
	},
		Entry("an empty file", "#raw\n", "is empty: must contain a KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1"),
		Entry("a file of comments", "#raw\n# nothing\n---\n", "is empty"),
		Entry("text", "#raw\nhello", "is not a KubeProxyConfiguration: must be an object"),
		Entry("bad syntax", "mode: [", "line 3"),
		Entry("several documents", "mode: iptables\n---\nmode: nftables", "contains 2 documents: must contain one KubeProxyConfiguration"),
		Entry("another kind", "#raw\napiVersion: v1\nkind: Pod", `apiVersion: Unsupported value: "v1": supported values: "kubeproxy.config.k8s.io/v1alpha1"`,
			`kind: Unsupported value: "Pod": supported values: "KubeProxyConfiguration"`),
		Entry("another version", "#raw\napiVersion: kubeproxy.config.k8s.io/v1\nkind: KubeProxyConfiguration", `supported values: "kubeproxy.config.k8s.io/v1alpha1"`),
		Entry("no kind", "#raw\nmode: iptables", "apiVersion: Required value: must be kubeproxy.config.k8s.io/v1alpha1", "kind: Required value: must be KubeProxyConfiguration"),
		Entry("a whole ConfigMap", "#raw\napiVersion: v1\nkind: ConfigMap\ndata: {}", "apiVersion: ", "kind: ", "must be the file in its data, config.conf with kubeadm"),

		Entry("duplicate fields", "mode: iptables\nclientConnection:\n  qps: 1\n  qps: 2\nmode: nftables",
			`line 6: duplicate field "clientConnection.qps"; first set in line 5`, `line 7: duplicate field "mode"; first set in line 3`),
		Entry("duplicate fields in JSON", `#raw`+"\n"+`{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "iptables": {"syncPeriod": "1s", "syncPeriod": "2s"}}`,
			`duplicate field "iptables.syncPeriod"`),

		Entry("all values of the wrong type", "bindAddressHardFail: maybe\nclientConnection: {burst: many, qps: [1]}\nmode: 7\nnodePortAddresses: primary\nlogging: {verbosity: -1}",
			`bindAddressHardFail: Invalid value: "maybe": must be true or false`,
			`clientConnection.burst: Invalid value: "many": must be a whole number`,
			`clientConnection.qps: Invalid value: [1]: must be a number`,
			`logging.verbosity: Invalid value: -1: must be a whole number of 32 bits that is not negative`,
			`mode: Invalid value: 7: must be a string`,
			`nodePortAddresses: Invalid value: "primary": must be a list of strings`),
		Entry("a list of numbers", "nodePortAddresses: [1]", "nodePortAddresses: Invalid value: [1]: must be a list of strings"),
		Entry("a feature gate that is not a Boolean", "featureGates: {One: on-and-off}", `featureGates.One: Invalid value: "on-and-off": must be true or false`),
		Entry("a section that is not an object", "iptables: 30s", `iptables: Invalid value: "30s": must be an object`),
		Entry("an object in place of a number", "clientConnection: {burst: {a: 1}}", `clientConnection.burst: Invalid value: {"a":1}: must be a whole number`),
		Entry("invalid durations and quantities", "iptables: {syncPeriod: 30}\nconfigSyncPeriod: soon\nlogging: {flushFrequency: often, options: {json: {infoBufferSize: big}}}",
			`configSyncPeriod: Invalid value: "soon": must be a duration such as 30s or 1m30s`,
			`iptables.syncPeriod: Invalid value: 30: must be a duration such as 30s or 1m30s`,
			`logging.flushFrequency: Invalid value: "often": must be a duration such as 30s or 1m30s`,
			`logging.options.json.infoBufferSize: Invalid value: "big": must be a quantity such as 64Ki`),

		Entry("all invalid values", "clientConnection: {burst: -1}\nhostnameOverride: a_b\nmode: ipvs\nipvs: {scheduler: best}",
			"clientConnection.burst: Invalid value: -1: must not be negative",
			`hostnameOverride: Invalid value: "a_b": must be the name of a Node`,
			`ipvs.scheduler: Unsupported value: "best": supported values: "dh", "fo", "lblc", `),
		Entry("mode kernelspace", "mode: kernelspace", `mode: Unsupported value: "kernelspace": supported values: "userspace", "iptables", "nftables", "ipvs"`),
		Entry("a node name that is only spaces", "hostnameOverride: '  '", "hostnameOverride: Invalid value"),
		Entry("an invalid content type", "clientConnection: {contentType: json, acceptContentTypes: 'application/json,,'}",
			"clientConnection.acceptContentTypes: Invalid value", `clientConnection.contentType: Invalid value: "json": must be a media type such as application/json`),
		Entry("healthzBindAddress: a name", "healthzBindAddress: localhost:10256", `healthzBindAddress: Invalid value: "localhost:10256": must be an IP address, or IP:port with a port from 1 to 65535, such as 127.0.0.1:10256 or [::1]:10256`),
		Entry("healthzBindAddress: port 0", "healthzBindAddress: 0.0.0.0:0", "healthzBindAddress: Invalid value"),
		Entry("metricsBindAddress: no address", "metricsBindAddress: ':10249'", "metricsBindAddress: Invalid value"),
		Entry("metricsBindAddress: port 65536", "metricsBindAddress: 127.0.0.1:65536", "metricsBindAddress: Invalid value"),
		Entry("bindAddress with a host name", "bindAddress: node-1", `bindAddress: Invalid value: "node-1": must be an IP address`),
		Entry("nodePortAddresses with an IP address", "nodePortAddresses: [192.0.2.1]", `nodePortAddresses[0]: Invalid value: "192.0.2.1": must be a CIDR such as 192.168.0.0/16, or one of primary, localhost, all`),
		Entry("nodePortAddresses with a duplicate", "nodePortAddresses: [all, primary, all]", `nodePortAddresses[2]: Duplicate value: "all"`),
		Entry("clusterCIDR without a prefix length", "clusterCIDR: 10.244.0.0", `clusterCIDR: Invalid value: "10.244.0.0": must be a CIDR such as 10.244.0.0/16`),
		Entry("clusterCIDR with two networks of one IP family", "clusterCIDR: 10.1.0.0/16,10.2.0.0/16", `clusterCIDR: Invalid value: "10.1.0.0/16,10.2.0.0/16"`),
		Entry("an invalid clusterCIDR even if it is unused", "detectLocalMode: NodeCIDR\nclusterCIDR: x", "clusterCIDR: Invalid value"),
		Entry("an unknown detectLocalMode", "detectLocalMode: Magic", `detectLocalMode: Unsupported value: "Magic": supported values: "ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"`),
		Entry("BridgeInterface without a bridge", "detectLocalMode: BridgeInterface", `detectLocal.bridgeInterface: Invalid value: "": must be 1 to 15 characters (letters, digits and . _ -) with detectLocalMode BridgeInterface`),
		Entry("InterfaceNamePrefix without a prefix", "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {bridgeInterface: br0}", `detectLocal.interfaceNamePrefix: Invalid value: ""`),
		Entry("a bridge with a wildcard", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: br+}", `detectLocal.bridgeInterface: Invalid value: "br+"`),
		Entry("an interface name prefix that is too long", "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali12345678901}", "must be 1 to 14 characters"),
		Entry("portRange in descending order", "portRange: 20-10", `portRange: Invalid value: "20-10": must be FIRST-LAST or FIRST+COUNT`),
		Entry("portRange beyond 65535", "portRange: 65000+1000", "portRange: Invalid value"),
		Entry("portRange from 0", "portRange: 0-10", "portRange: Invalid value"),
		Entry("portRange that is not a range", "portRange: any", "portRange: Invalid value"),
		Entry("an unknown logging.format", "logging: {format: xml}", `logging.format: Unsupported value: "xml": supported values: "text", "json"`),
		Entry("negative periods", "configSyncPeriod: -1s\nnftables: {syncPeriod: -1s}\niptables: {syncPeriod: -1s, minSyncPeriod: -1s}",
			`configSyncPeriod: Invalid value: "-1s": must be greater than 0, or 0 for the default`, "iptables.syncPeriod: Invalid value", "iptables.minSyncPeriod: Invalid value"),
		Entry("a syncPeriod that is too short", "iptables: {syncPeriod: 1ms}", `iptables.syncPeriod: Invalid value: "1ms": must be at least 100ms, or 0 for the default`),
		Entry("a minSyncPeriod greater than syncPeriod", "mode: nftables\nnftables: {syncPeriod: 1s, minSyncPeriod: 2s}", `nftables.minSyncPeriod: Invalid value: "2s": must not be greater than nftables.syncPeriod, which is 1s`),
	)

	DescribeTable("accepts kube-proxy's flags", func(flag, value string, want Settings) {
		s, warnings, err := Read("", map[string]string{flag: value})
		Expect(err).NotTo(HaveOccurred())
		Expect(*s).To(are(want))
		Expect(warnings).To(BeEmpty())
	},
		Entry(nil, "hostname-override", "Worker-1", Settings{Flags: flags{"node-name": "worker-1"}}),
		Entry(nil, "healthz-bind-address", "0.0.0.0", Settings{Flags: flags{"healthz-address": "0.0.0.0:10256"}}),
		Entry(nil, "metrics-bind-address", "[::1]:9", Settings{Flags: flags{"admin-address": "[::1]:9"}}),
		Entry(nil, "proxy-mode", "nftables", Settings{Flags: flags{"portal": "nftables", "nodeport-addresses": "primary"}}),
		Entry(nil, "v", "4", Settings{Flags: flags{"log-level": "debug"}}),
		Entry(nil, "logging-format", "json", Settings{Flags: flags{"log-format": "json"}}),
		Entry(nil, "detect-local-mode", "NodeCIDR", Settings{}),
		Entry(nil, "config-sync-period", "15m", Settings{Resync: 15 * time.Minute}),
		Entry(nil, "iptables-sync-period", "30s", Settings{Flags: flags{"portal-check-interval": "30s"}}),
		Entry(nil, "iptables-min-sync-period", "1s", Settings{Flags: flags{"max-sync-delay": "1s"}}),
		Entry(nil, "kube-api-qps", "2.5", Settings{QPS: 2.5}),
		Entry(nil, "kube-api-burst", "7", Settings{Burst: 7}),
		Entry(nil, "conntrack-min", "2000", Settings{Conntrack: conntrack(func(c *daemon.Conntrack) { c.Min = 2000 })}),
		Entry(nil, "conntrack-tcp-timeout-established", "1h", Settings{Conntrack: conntrack(func(c *daemon.Conntrack) { c.TCPEstablished = time.Hour })}),
		Entry(nil, "conntrack-tcp-be-liberal", "true", Settings{Conntrack: conntrack(func(c *daemon.Conntrack) { c.TCPBeLiberal = true })}),
	)

	It("prefers a flag over the file, and keeps the section's other fields", func() {
		s, _, err := Read(write(header+"mode: iptables\niptables: {syncPeriod: 20s, minSyncPeriod: 2s}"), map[string]string{"iptables-sync-period": "30s"})
		Expect(err).NotTo(HaveOccurred())
		Expect(*s).To(Equal(Settings{Flags: flags{"portal": "iptables", "portal-check-interval": "30s", "max-sync-delay": "2s"}}))
	})

	It("applies the flags of the sync period to the mode nftables, too", func() {
		s, warnings, err := Read(write(header+"mode: nftables\nnftables: {minSyncPeriod: 2s}\niptables: {syncPeriod: 20s}"), map[string]string{"iptables-sync-period": "5s"})
		Expect(err).NotTo(HaveOccurred())
		Expect(s.Flags).To(And(HaveKeyWithValue("portal-check-interval", "5s"), HaveKeyWithValue("max-sync-delay", "2s")))
		Expect(warnings).NotTo(ContainElement(ContainSubstring("iptables-sync-period")))
	})

	It("names flags without effect in one warning", func() {
		_, warnings, err := Read("", map[string]string{"oom-score-adj": "-999", "feature-gates": "One=true,Two=true", "write-config-to": "x", "ipvs-scheduler": "rr"})
		Expect(err).NotTo(HaveOccurred())
		Expect(warnings).To(ConsistOf(And(HavePrefix("kube-proxy flags without effect: "),
			ContainSubstring("--oom-score-adj ("), ContainSubstring("--feature-gates (usher has no feature gates)"), ContainSubstring("--write-config-to ("), ContainSubstring("--ipvs-scheduler (mode is "))))
	})

	It("refuses invalid flag values with the same errors as in the file", func() {
		_, _, err := Read("", map[string]string{"conntrack-min": "many", "proxy-mode": "iptables"})
		Expect(err).To(MatchError(ContainSubstring(`conntrack.min: Invalid value: "many": must be a whole number`)))
		_, _, err = Read(write(header+"conntrack: 5"), map[string]string{"conntrack-min": "1"})
		Expect(err).To(MatchError(ContainSubstring("conntrack: Invalid value: 5: must be an object")))
		_, _, err = Read("", map[string]string{"proxy-mode": "kernelspace"})
		Expect(err).To(MatchError(ContainSubstring(`mode: Unsupported value: "kernelspace"`)))
	})

	It("maps each flag to a known field of the file", func() {
		for _, f := range Flags {
			_, warnings, err := Read("", map[string]string{f.Name: "x=y"})
			Expect(fmt.Sprint(warnings, err)).NotTo(ContainSubstring("unknown field"), f.Name)
		}
	})

	It("comes with Changed, which lists the fields that differ between two files", func() {
		before := header + "mode: iptables\niptables: {syncPeriod: 30s}\n"
		Expect(Changed([]byte(before), []byte("# a comment\n"+before))).To(BeEmpty())
		Expect(Changed([]byte(before), []byte(header+"iptables: {syncPeriod: 31s}\nnodePortAddresses: [primary]"))).
			To(Equal([]string{"iptables.syncPeriod", "mode", "nodePortAddresses"}))
		Expect(Changed([]byte(before), []byte("{"))).To(Equal([]string{"the file is invalid now"}))
	})

	It("names a file that it cannot read", func() {
		_, _, err := Read("/nowhere/config.conf", nil)
		Expect(err).To(MatchError(ContainSubstring("/nowhere/config.conf")))
		Expect(err).To(MatchError(os.ErrNotExist))
	})

	It("accepts JSON, also with tabs", func() {
		s, _, err := Read(write("{\n\t\"apiVersion\": \"kubeproxy.config.k8s.io/v1alpha1\",\n\t\"kind\": \"KubeProxyConfiguration\",\n\t\"mode\": \"iptables\"\n}\n"), nil)
		Expect(err).NotTo(HaveOccurred())
		Expect(s.Flags).To(Equal(flags{"portal": "iptables"}))
	})

	It("finds the document among comments and separators", func() {
		s, _, err := Read(write("# kube-proxy\n---\n# none\n---\n"+header+"mode: iptables\n---\n"), nil)
		Expect(err).NotTo(HaveOccurred())
		Expect(s.Flags).To(Equal(flags{"portal": "iptables"}))
	})

	It("loads what kubeadm writes, without a warning", func() {
		s, warnings, err := Read("testdata/kubeadm.conf", nil)
		Expect(err).NotTo(HaveOccurred())
		Expect(warnings).To(BeEmpty())
		Expect(*s).To(Equal(Settings{Flags: flags{"kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf", "cluster-cidr": "10.244.0.0/16"}}))
	})

	It("loads the output of kube-proxy --write-config-to, and warns about its defaults", func() {
		s, warnings, err := Read("testdata/kube-proxy-defaults.yaml", nil)
		Expect(err).NotTo(HaveOccurred())
		Expect(*s).To(Equal(Settings{Flags: flags{"healthz-address": "0.0.0.0:10256", "admin-address": "127.0.0.1:10249", "log-format": "text", "portal-check-interval": "30s", "max-sync-delay": "1s"}, ContentType: "application/vnd.kubernetes.protobuf", QPS: 5, Burst: 10, Conntrack: &daemon.DefaultConntrack, Resync: 15 * time.Minute}))
		Expect(warnings).To(HaveLen(4), strings.Join(warnings, "\n"))
	})

	It("loads the file of a kube-proxy in mode ipvs, and its warnings match docs/kubernetes.md", func() {
		s, warnings, err := Read("testdata/ipvs.yaml", nil)
		Expect(err).NotTo(HaveOccurred())
		Expect(s.Flags).To(Equal(flags{"scheduler": "wlc", "portal-check-interval": "30s", "max-sync-delay": "2s", "cluster-cidr": "10.244.0.0/16"}))
		var named []string
		for _, w := range warnings {
			field, _, _ := strings.Cut(strings.TrimPrefix(w, "testdata/ipvs.yaml: "), ": ")
			named = append(named, field)
		}
		Expect(named).To(ConsistOf("iptables.masqueradeAll", "ipvs.excludeCIDRs", "ipvs.strictARP", "ipvs.tcpFinTimeout", "ipvs.tcpTimeout", "ipvs.udpTimeout"))
		page, err := os.ReadFile("../../../../docs/kubernetes.md")
		Expect(err).NotTo(HaveOccurred())
		for _, field := range append(named, "ipvs.scheduler", "ipvs.syncPeriod", "ipvs.minSyncPeriod") {
			Expect(string(page)).To(ContainSubstring("`" + field + "`"))
		}
		for _, name := range []string{"rr", "wrr", "lc", "wlc", "sed", "nq", "sh", "dh", "mh", "twos", "lblc", "lblcr", "fo", "ovf"} {
			Expect(string(page)).To(ContainSubstring("`" + name + "`"))
		}
	})

	// usher must not silently ignore a field that a new release adds.
	Context("for each field of KubeProxyConfiguration", func() {
		fields := map[string]string{}
		everyField(reflect.TypeFor[v1alpha1.KubeProxyConfiguration](), nil, fields)
		for path, value := range fields {
			It(fmt.Sprintf("uses or warns about %s", path), func() {
				keys := strings.Split(path, ".")
				body := ""
				for depth, key := range keys {
					body += strings.Repeat("  ", depth) + key + ":\n"
				}
				s, warnings := read(strings.TrimSuffix(body, "\n") + " " + value + "\n")
				if reflect.DeepEqual(*s, Settings{Flags: flags{}}) {
					Expect(warnings).NotTo(BeEmpty())
				}
				Expect(warnings).NotTo(ContainElement(ContainSubstring("unknown field")))
			})
		}
	})
})

// valid has values for fields that accept only some values.
var valid = map[string]string{
	"clientConnection.acceptContentTypes": "application/json",
	"clientConnection.contentType":        "application/json",
	"bindAddress":                         "192.0.2.1",
	"healthzBindAddress":                  "192.0.2.1",
	"metricsBindAddress":                  "192.0.2.1",
	"mode":                                "iptables",
	"detectLocalMode":                     "InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: some}",
	"clusterCIDR":                         "10.0.0.0/8",
	"nodePortAddresses":                   "[10.0.0.0/8]",
	"portRange":                           "1-2",
	"logging.format":                      "json",
	"logging.vmodule":                     "[{filePattern: a, verbosity: 1}]",
	"iptables.localhostNodePorts":         "false",
}

// everyField adds a value for each field of a type to out.
func everyField(t reflect.Type, keys []string, out map[string]string) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		at := append(keys[:len(keys):len(keys)], name)
		if f.Anonymous && name == "" {
			at = keys
		}
		kind := f.Type
		if kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		path := strings.Join(at, ".")
		switch {
		case kind == reflect.TypeFor[metav1.TypeMeta]():
		case valid[path] != "":
			out[path] = valid[path]
		case kind == reflect.TypeFor[metav1.Duration](), kind == reflect.TypeFor[logsapi.TimeOrMetaDuration]():
			out[path] = "7s"
		case strings.HasSuffix(path, "infoBufferSize"):
			out[path] = "64Ki"
		case kind.Kind() == reflect.Struct:
			everyField(kind, at, out)
		case kind.Kind() == reflect.Bool:
			out[path] = "true"
		case kind.Kind() == reflect.String:
			out[path] = "some"
		case kind.Kind() == reflect.Map:
			out[path] = "{Some: true}"
		case kind.Kind() == reflect.Slice:
			out[path] = "[some]"
		default:
			out[path] = "7"
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, file := range []string{"testdata/kubeadm.conf", "testdata/kube-proxy-defaults.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add(header + "portRange: 1+9223372036854775807\nnodePortAddresses: [&a 10.0.0.0/8, *a]")
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, _, err := Read(path, nil)
		if (s == nil) != (err != nil) {
			t.Fatalf("%v, %v", s, err)
		}
		if s == nil {
			return
		}
		var doc map[string]any
		if yaml.Unmarshal([]byte(text), &doc) == nil && doc != nil && doc["kind"] != Kind {
			t.Fatalf("kind %v was taken", doc["kind"])
		}
	})
}

// conntrack returns kube-proxy's defaults, changed by differs.
func conntrack(differs func(*daemon.Conntrack)) *daemon.Conntrack {
	c := daemon.DefaultConntrack
	differs(&c)
	return &c
}
