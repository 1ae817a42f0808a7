package main

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/serve"
	"github.com/usherproxy/usher/cmd/usher/daemon"
	"github.com/usherproxy/usher/cmd/usher/daemon/kubeproxy"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/stream"
)

func TestCommands(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "commands")
}

// runWith parses the flags of 'usher run', and returns the command and the warnings.
func runWith(args ...string) (r *runCommand, cmd *cobra.Command, warnings []string, err error) {
	GinkgoHelper()
	r = &runCommand{}
	cmd = newRunOf(r)
	cmd.SetErr(GinkgoWriter)
	if err = cmd.ParseFlags(args); err == nil {
		warnings, err = r.complete(cmd)
	}
	return r, cmd, warnings, err
}

// configOf returns the Config that 'usher run' creates from these flags.
func configOf(args ...string) daemon.Config {
	GinkgoHelper()
	r, _, _, err := runWith(args...)
	Expect(err).NotTo(HaveOccurred())
	return r.Config
}

// file writes a file and returns its path.
func file(text string) string {
	GinkgoHelper()
	path := filepath.Join(GinkgoT().TempDir(), "file")
	Expect(os.WriteFile(path, []byte(text), 0o600)).To(Succeed())
	return path
}

const header = "apiVersion: " + kubeproxy.APIVersion + "\nkind: " + kubeproxy.Kind + "\n"

var _ = Describe("usher run", func() {
	It("uses the daemon's defaults and the default HTTP addresses without flags", func() {
		c := configOf("--node-name=worker-1")
		Expect(c.AdminAddress).To(Equal("127.0.0.1:10249"))
		Expect(c.HealthzAddress).To(Equal("0.0.0.0:10256"))
		defaults := daemon.Defaults()
		Expect(c.Proxy.Schedule).To(Equal(defaults.Proxy.Schedule))
		defaults.Portal.Aliases = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("fd75:7368:6572:8000::/49")}
		Expect(c.Portal).To(Equal(defaults.Portal))
		Expect([]any{c.Mode, c.MaxDelay, c.DrainTimeout, c.TraceEvents, c.AccessLog.Format}).
			To(Equal([]any{defaults.Mode, defaults.MaxDelay, defaults.DrainTimeout, defaults.TraceEvents, defaults.AccessLog.Format}))
	})

	It("accepts deprecated flags with a warning each, and hides them", func() {
		r, cmd, warnings, err := runWith("--node-name=worker-1", "--probes=false", "--max-affinity-per-port=0", "--trace-connections", "7", "--access-log-default=false", "--context=staging", "--max-sync-delay=2s", "--bind-address-hard-fail")
		Expect(err).NotTo(HaveOccurred())
		Expect(warnings).To(ConsistOf(
			"--probes is deprecated: it has no effect; quarantined endpoints are always probed where that is possible",
			"--max-affinity-per-port is deprecated: it has no effect; the shares of service ports are fixed, see docs/sizing.md",
			"--trace-connections is deprecated: it has no effect; 4,096 connections are kept",
			"--access-log-default is deprecated: use the annotation usher.io/access-log",
			"--context is deprecated: use a --kubeconfig whose current context is this one",
			"--max-sync-delay is deprecated: set minSyncPeriod in kube-proxy's configuration (usher run --config)"))
		Expect([]any{r.Cluster.Context, r.MaxDelay, r.Policy.AccessLog, r.HardFail}).To(Equal([]any{"staging", 2 * time.Second, false, true}), "those that still have an effect")
		Expect(serve.AllFlags(cmd)).To(And(HaveKey("max-sync-delay"), Not(HaveKey("probes"))))
		Expect(r.Proxy.Quarantine.UntilProbe).To(BeTrue())
		Expect(cmd.Flags().FlagUsages()).NotTo(MatchRegexp(`--(probes|context|max-sync-delay|bind-address-hard-fail|[a-z-]+-per-port|trace-connections|access-log-default)\b`))

		_, _, warnings, err = runWith("--node-name=worker-1", "--config="+file(header+"bindAddressHardFail: true\niptables: {minSyncPeriod: 1s}"))
		Expect(err).NotTo(HaveOccurred())
		Expect(warnings).NotTo(ContainElement(ContainSubstring("deprecated")), "the file sets these flags")
	})

	It("stores parsed flag values in its Config", func() {
		c := configOf("--manifests=/tmp", "--service-cidr=10.1.0.0/16,fd00::/112", "--cluster-cidr=10.2.0.0/16", "--load-balancer-cidr=10.3.0.0/16", "--nodeport-addresses=192.0.2.0/24",
			"--proxy-port-range=40000-40010", "--iptables-target=redirect", "--sctp=off")
		Expect(c.ServiceCIDRs).To(HaveExactElements(netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/112")))
		Expect(c.PodNetworks).To(HaveExactElements(netip.MustParsePrefix("10.2.0.0/16")))
		Expect(c.LoadBalancers).To(HaveExactElements(netip.MustParsePrefix("10.3.0.0/16")))
		Expect(c.NodePorts).To(Equal(daemon.NodePorts{Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}))
		Expect(c.Portal.ProxyPorts).To(Equal(portal.PortRange{First: 40000, Last: 40010}))
		Expect(c.Portal.IPTablesTarget).To(Equal("redirect"))
		Expect(c.Proxy.SCTP).To(Equal(stream.SCTPOff))
	})

	DescribeTable("returns a usage error that names the invalid flag",
		func(arg, says string) {
			_, _, _, err := runWith("--manifests=/tmp", arg)
			Expect(err).To(MatchError(says))
			Expect(err).To(BeAssignableToTypeOf(&cli.UsageError{}))
		},
		Entry(nil, "--dial-timeouts=1s,0s", `--dial-timeouts: invalid value "0s": must be greater than 0`),
		Entry(nil, "--keepalive=24h", `--keepalive: invalid value "24h0m0s": must be at most 9h6m7s`),
		Entry(nil, "--max-udp-sessions=0", `--max-udp-sessions: invalid value "0": must be at least 1`),
		Entry(nil, "--service-cidr=10.0.0.1/8", `--service-cidr: invalid value "10.0.0.1/8": host bits are set; did you mean 10.0.0.0/8?`),
		Entry(nil, "--service-cidr=10.0.0.0/8,11.0.0.0/8", `--service-cidr: "10.0.0.0/8" and "11.0.0.0/8" are of the same IP family: at most one network per IP family`),
		Entry(nil, "--service-cidr=::ffff:10.0.0.0/112", `--service-cidr: invalid value "::ffff:10.0.0.0/112": must not be an IPv4-mapped IPv6 network`),
		Entry(nil, "--load-balancer-ip-cidr=10.0.0.0/31", `--load-balancer-ip-cidr: invalid value "10.0.0.0/31": must hold at least 4 addresses`),
		Entry(nil, "--service-cidr=127.0.0.0/16", `--service-cidr: invalid value "127.0.0.0/16": may not be in the loopback range (127.0.0.0/8, ::1/128)`),
		Entry(nil, "--load-balancer-ip-cidr=fe80::/64", `--load-balancer-ip-cidr: invalid value "fe80::/64": may not be in the link-local range (169.254.0.0/16, fe80::/10)`),
		Entry(nil, "--service-cidr=", "--service-cidr: at least one network is required"),
		Entry(nil, "--proxy-port-range=9-5", `--proxy-port-range: invalid value "9-5": must be FIRST-LAST with ports from 1 to 65535`),
		Entry(nil, "--nodeport-addresses=primary,here", `--nodeport-addresses: invalid value "here": must be a CIDR such as 192.0.2.0/24, or one of primary, localhost, all`),
		Entry(nil, "--load-balancer-cidr=elb", `--load-balancer-cidr: invalid value "elb": must be a CIDR such as 10.0.0.0/16`),
		Entry(nil, "--context=staging", "--manifests cannot be combined with --kubeconfig, --context or --server: Services come either from files or from an API server"),
	)
})

var _ = Describe("a setting of 'usher run'", func() {
	It("comes from usher's flag, else kube-proxy's flag, else the file, else the default", func() {
		config := "--config=" + file(header+"mode: iptables\nhealthzBindAddress: 127.0.0.1:1\nnodePortAddresses: [primary]\nbindAddress: 192.0.2.7\niptables: {syncPeriod: 7s}\n")
		all := func(args ...string) []any {
			GinkgoHelper()
			c := configOf(append(args, "--node-name=worker-1")...)
			return []any{c.Mode, c.HealthzAddress, c.NodePorts.Primary, c.Proxy.CheckInterval}
		}
		Expect(all()).To(Equal([]any{"auto", "0.0.0.0:10256", false, 10 * time.Second}))
		Expect(all(config)).To(Equal([]any{"iptables", "127.0.0.1:1", true, 7 * time.Second}))
		Expect(all(config, "--proxy-mode=nftables", "--healthz-bind-address=127.0.0.1:2")).To(HaveExactElements("nftables", "127.0.0.1:2", true, Not(Equal(7*time.Second))))
		Expect(all(config, "--proxy-mode=nftables", "--portal=none", "--healthz-address=127.0.0.1:3", "--healthz-bind-address=127.0.0.1:2", "--nodeport-addresses=192.0.2.0/24", "--portal-check-interval=9s")).
			To(Equal([]any{"none", "127.0.0.1:3", false, 9 * time.Second}))
	})

	It("comes from the file if it has no flag", func() {
		c := configOf("--node-name=worker-1", "--config="+file(header+
			"conntrack: {min: 5}\nconfigSyncPeriod: 3m\nclientConnection: {qps: 3, burst: 4}\nnodePortAddresses: [primary]\nbindAddress: 192.0.2.7\ndetectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}\n"))
		Expect(c.Conntrack.Min).To(Equal(5))
		Expect(c.Resync).To(Equal(3 * time.Minute))
		Expect(c.Cluster.QPS).To(BeEquivalentTo(3))
		Expect(c.Cluster.Burst).To(Equal(4))
		Expect(c.NodePorts).To(Equal(daemon.NodePorts{Primary: true, NodeIP: netip.MustParseAddr("192.0.2.7")}))
		Expect(c.Portal.PodInterfaces).To(Equal(portal.Interfaces("cali+")))
	})

	It("has kube-proxy's default for connection tracking on cluster nodes only", func() {
		kubeadm := file(header + "conntrack: {maxPerCore: null, min: null, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null}\n")
		Expect(configOf().Conntrack).To(Equal(daemon.DefaultConntrack))
		Expect(configOf("--config=" + kubeadm).Conntrack).To(Equal(daemon.DefaultConntrack))
		Expect(configOf("--conntrack-max-per-core=0").Conntrack.MaxPerCore).To(BeZero())
		Expect(configOf("--config="+kubeadm, "--manifests=/tmp").Conntrack).To(BeZero())
	})

	It("comes from --manifests even if the file has a kubeconfig", func() {
		c := configOf("--manifests=/tmp", "--config="+file(header+"clientConnection: {kubeconfig: /etc/kube.conf}\n"))
		Expect(c.Manifests).To(HaveExactElements("/tmp"))
		Expect(c.HealthzAddress).To(BeEmpty(), "as without the file")
	})

	It("is not read from OpenTelemetry's environment variables, which cause a warning", func() {
		GinkgoT().Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
		_, _, warnings, err := runWith("--manifests=/tmp")
		Expect(err).NotTo(HaveOccurred())
		Expect(warnings).To(ConsistOf(And(HavePrefix("OTEL_EXPORTER_OTLP_ENDPOINT: ignored"), ContainSubstring("--access-log"))))
	})

	It("is accepted from kube-proxy's flags", func() {
		r, cmd, warnings, err := runWith("--hostname-override=Worker-1", "--healthz-bind-address=127.0.0.1", "--proxy-mode=iptables", "--node-name=worker-2",
			"--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=cali",
			"-v=4", "--masquerade-all", "--conntrack-min=7", "--master=https://192.0.2.1")
		Expect(err).NotTo(HaveOccurred())
		Expect(warnings).To(ConsistOf(ContainSubstring("--masquerade-all (")))
		Expect(r.NodeName).To(Equal("worker-2"), "usher's flag takes precedence")
		Expect(r.HealthzAddress).To(Equal("127.0.0.1:10256"))
		Expect(r.Mode).To(Equal("iptables"))
		Expect(r.Conntrack.Min).To(Equal(7))
		Expect(r.Portal.PodInterfaces).To(Equal(portal.Interfaces("cali+")))
		Expect(r.Cluster.Server).To(Equal("https://192.0.2.1"))
		Expect(r.Log.(*logrus.Logger).Level).To(Equal(logrus.DebugLevel))
		Expect(serve.AllFlags(cmd)).To(And(HaveKey("hostname-override"), Not(HaveKey("oom-score-adj"))))
		Expect(cmd.UsageString()).NotTo(ContainSubstring("hostname-override"))
	})

	It("is rejected if its flag is unknown", func() {
		_, _, _, err := runWith("--no-such-flag")
		Expect(err).To(MatchError("unknown flag: --no-such-flag"))
	})

	DescribeTable("is rejected with an error that names its source",
		func(usage bool, says string, args ...string) {
			_, _, _, err := runWith(args...)
			Expect(err).To(MatchError(HavePrefix(says)))
			_, isUsage := err.(*cli.UsageError)
			Expect(isUsage).To(Equal(usage))
		},
		Entry("from kube-proxy's flags", true, "kube-proxy flags: mode: ", "--proxy-mode=red"),
		Entry("from a file", false, "--config: open /no/such/file", "--config=/no/such/file"),
	)
})

var _ = Describe("the mark", func() {
	It("is shown in hexadecimal, and accepted in hexadecimal or decimal", func() {
		r, cmd, _, err := runWith("--manifests=/tmp")
		Expect(err).NotTo(HaveOccurred())
		Expect(cmd.Flags().FlagUsages()).To(MatchRegexp(`--mark bits .*\(default 0x1000\)`))
		Expect(serve.AllFlags(cmd)).To(HaveKeyWithValue("mark", "0x1000"))
		for _, sixteen := range []string{"0x10", "16"} {
			Expect(cmd.ParseFlags([]string{"--mark=" + sixteen})).To(Succeed())
			Expect(r.Portal.Mark).To(BeEquivalentTo(16))
			Expect(serve.AllFlags(cmd)).To(HaveKeyWithValue("mark", "0x10"))
		}
		for _, wrong := range []string{"", "-1", "0x100000000", "red"} {
			Expect(cmd.ParseFlags([]string{"--mark=" + wrong})).To(MatchError(ContainSubstring("such as 0x1000")))
		}
		Expect(cmd.ParseFlags([]string{"--mark=0xffffffff"})).To(MatchError(ContainSubstring("must leave a bit unset")))
	})
})

var _ = Describe("the source address that endpoints see", func() {
	It("is selected by --client-address, auto or node", func() {
		r, cmd, _, err := runWith("--manifests=/tmp")
		Expect(err).NotTo(HaveOccurred())
		Expect(serve.AllFlags(cmd)).To(HaveKeyWithValue("client-address", "auto"))
		Expect(r.Portal.NodeAddress).To(BeFalse())
		Expect(configOf("--manifests=/tmp", "--client-address=node").Portal.NodeAddress).To(BeTrue())
		Expect(configOf("--manifests=/tmp", "--client-address=auto").Portal.NodeAddress).To(BeFalse())
		for _, wrong := range []string{"", "client", "Node"} {
			Expect(cmd.ParseFlags([]string{"--client-address=" + wrong})).To(MatchError(ContainSubstring("must be one of auto, node")))
		}
	})

	It("can be an alias from the networks of --client-aliases", func() {
		_, cmd, _, err := runWith("--manifests=/tmp")
		Expect(err).NotTo(HaveOccurred())
		Expect(serve.AllFlags(cmd)).To(HaveKeyWithValue("client-aliases", "[198.18.0.0/15,fd75:7368:6572:8000::/49]"))
		for given, want := range map[string][]netip.Prefix{
			"100.64.0.0/10":           {netip.MustParsePrefix("100.64.0.0/10")},
			"fd99::/32,100.64.0.0/10": {netip.MustParsePrefix("fd99::/32"), netip.MustParsePrefix("100.64.0.0/10")},
			"198.18.0.0/32":           {netip.MustParsePrefix("198.18.0.0/32")},
			"":                        nil,
		} {
			Expect(configOf("--manifests=/tmp", "--client-aliases="+given).Portal.Aliases).To(Equal(want), given)
		}
		for wrong, why := range map[string]string{
			"198.18.0.0":                  "must be a CIDR",
			"198.18.0.1/15":               "did you mean 198.18.0.0/15",
			"198.18.0.0/16,198.19.0.0/16": "at most one network per IP family",
			"fd99::/32,":                  "must be a CIDR",
		} {
			_, _, _, err := runWith("--manifests=/tmp", "--client-aliases="+wrong)
			Expect(err).To(MatchError(And(HavePrefix("--client-aliases: "), ContainSubstring(why))))
		}
	})
})

var _ = Describe("kube-proxy's configuration file", func() {
	It("is watched, and a change is logged", func() {
		path := file("")
		said := gbytes.NewBuffer()
		log := logrus.New()
		log.SetOutput(said)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			watchConfig(ctx, path, []byte(header+"mode: iptables\n"), time.Millisecond, log)
		}()
		defer func() { cancel(); <-done }()
		Expect(os.WriteFile(path+".new", []byte(header+"mode: nftables\n"), 0o600)).To(Succeed())
		Expect(os.Rename(path+".new", path)).To(Succeed())
		Eventually(said).WithTimeout(30 * time.Second).Should(gbytes.Say(`Configuration file has changed \(mode\)`))
	})
})
