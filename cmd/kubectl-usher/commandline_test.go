package main

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/serve"
	"github.com/usherproxy/usher/cmd/internal/view"
	"github.com/usherproxy/usher/proxy/portforward"
)

func TestCommands(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "commands")
}

// says runs a command line, and returns its exit code and output.
func says(args ...string) (code int, out, err string) {
	var stdout, stderr bytes.Buffer
	root := newRoot()
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	code = cli.Execute(context.Background(), root, view.KindAndName(root, args))
	return code, stdout.String(), stderr.String()
}

// file writes a file and returns its path.
func file(text string) string {
	GinkgoHelper()
	path := filepath.Join(GinkgoT().TempDir(), "file")
	Expect(os.WriteFile(path, []byte(text), 0o600)).To(Succeed())
	return path
}

var _ = Describe("the command line", func() {
	It("shows its commands as 'kubectl usher' in all output", func() {
		code, out, _ := says("explain", "--help")
		Expect(code).To(BeZero())
		Expect(out).To(And(ContainSubstring("\n  kubectl usher explain SERVICE[:PORT] [flags]\n"), ContainSubstring("\n  kubectl usher explain web\n")))
		for _, cmd := range newRoot().Commands() {
			_, out, _ := says(cmd.Name(), "--help")
			Expect(out).NotTo(MatchRegexp(`(?m)^  usher `), cmd.Name())
		}
		code, _, err := says("run")
		Expect(code).To(Equal(2), "run is a command for nodes")
		Expect(err).To(HaveSuffix("See 'kubectl usher --help'.\n"))
	})

	DescribeTable("reports",
		func(code int, text string, args ...string) {
			GinkgoT().Setenv("KUBECONFIG", filepath.Join(GinkgoT().TempDir(), "none"))
			got, _, err := says(args...)
			Expect(err).To(ContainSubstring(text))
			Expect(got).To(Equal(code))
		},
		Entry("a dashboard address that is not loopback", 2, `--address: invalid value "0.0.0.0": must be a loopback address`, "dashboard", "--usher=a=127.0.0.1:1", "--address=0.0.0.0:0"),
		Entry("an instance without a node", 2, `--usher: invalid value "127.0.0.1:1": must be NODE=HOST:PORT`, "dashboard", "--usher=127.0.0.1:1"),
		Entry("an instance without a port", 2, `--usher a: "192.0.2.1" is not host:port`, "dashboard", "--usher=a=192.0.2.1"),
		Entry("an invalid node name", 2, `--usher: invalid node name "../a"`, "dashboard", "--usher=../a=127.0.0.1:1"),
		Entry("a duplicate node", 2, "--usher: node a is given twice", "dashboard", "--usher=a=127.0.0.1:1", "--usher=a=127.0.0.1:2"),
		Entry("--usher combined with --context", 2, "--context cannot be combined with --usher", "dashboard", "--usher=a=127.0.0.1:1", "--context=x"),
		Entry("--local combined with --node", 2, "--node cannot be combined with --local", "get", "services", "--local", "--node=a"),
		Entry("--local combined with --context", 2, "--context cannot be combined with --local", "trace", "--local", "--context=a"),
		Entry("a missing cluster configuration", 1, "no cluster configured", "get", "services"),
		Entry("an admin address without a port", 2, "--admin-address: \"1\" is not host:port", "get", "services", "--admin-address=1"),
		Entry("a missing node for a command that queries one instance", 2, "top queries a single usher instance: set --node, or --local", "top"),
		Entry("flags that work only on the node itself", 2, "--bundle, --log and --dns work only on the node itself", "diagnose", "--bundle=a", "-n=a"),
		Entry("an unknown value of --via", 2, `--via: invalid value "car": must be one of direct, portforward, auto`, "connect", "--via=car"),
		Entry("--via combined with --manifests", 2, "--via=auto requires an API server and cannot be combined with --manifests", "connect", "--manifests=/tmp", "--via=auto"),
		Entry("two sources of Services", 2, "Services come either from files or from an API server", "connect", "--manifests=/tmp", "--context=staging"),
		Entry("a SOCKS address without a port", 2, `--socks: invalid value "1080": must be HOST:PORT, such as 127.0.0.1:1080`, "connect", "--manifests=/tmp", "--socks=1080"),
		Entry("a SOCKS address without a port for proxy-env", 2, `--socks: invalid value "1080": must be HOST:PORT, such as 127.0.0.1:1080`, "proxy-env", "--socks=1080"),
		Entry("an invalid domain for connect", 2, "--dns-domain: \"a..b\" is not a domain such as cluster.local", "connect", "--manifests=/tmp", "--dns-domain=a..b"),
		Entry("an invalid domain for exec", 2, "--dns-domain: \"a..b\" is not a domain such as cluster.local", "exec", "--manifests=/tmp", "--dns-domain=a..b"),
		Entry("an invalid resolver address", 2, `--dns: invalid value "localhost": must be an address`, "connect", "--manifests=/tmp", "--dns=localhost"),
	)
})

var _ = Describe("kubectl usher connect", func() {
	with := func(args ...string) *connectCommand {
		GinkgoHelper()
		c := &connectCommand{Flags: serve.New()}
		cmd := newConnectOf(c)
		Expect(cmd.ParseFlags(args)).To(Succeed())
		Expect(c.complete(cmd)).To(Succeed())
		return c
	}

	It("connects through the API server by default, with a SOCKS proxy and no portal", func() {
		c := with()
		Expect(c.Tunnel.Name).To(Equal("portforward"))
		Expect(c.Proxy.Schedule).To(Equal(portforward.Schedule))
		Expect([]string{c.NodeName, c.HealthzAddress, c.Mode}).To(Equal([]string{"", "", "none"}))
		Expect(c.SOCKS).NotTo(BeNil())
		Expect(c.Names).To(BeNil())
	})
	It("uses the values of its flags", func() {
		c := with("--via=auto", "--dial-timeouts=1s", "--node-name=worker-1", "--healthz-address=127.0.0.1:1", "--portal=auto", "--socks=",
			"--dns=192.0.2.53", "--dns-upstream=192.0.2.1,192.0.2.2:5353")
		Expect(c.Tunnel.Name).To(Equal("auto"))
		Expect(c.Proxy.Schedule).To(HaveExactElements(time.Second))
		Expect([]string{c.NodeName, c.HealthzAddress, c.Mode}).To(Equal([]string{"worker-1", "127.0.0.1:1", "auto"}))
		Expect(c.SOCKS).To(BeNil())
		Expect(c.Names).NotTo(BeNil())
		Expect(c.names.options.Upstreams).To(HaveExactElements(netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("192.0.2.2:5353")))
	})
	It("describes the effect of --via on --dial-timeouts, which exec does not have", func() {
		Expect(newConnect().Flag("via").Usage).To(ContainSubstring("--dial-timeouts"))
		Expect(newExec().Flag("dial-timeouts")).To(BeNil())
		Expect(newExec().Flag("via").Usage).NotTo(ContainSubstring("--dial-timeouts"))
	})
	It("reaches the endpoints of manifests directly", func() {
		c := with("--manifests=/tmp")
		Expect(c.Tunnel).To(BeNil())
		Expect(c.Proxy.Schedule).To(Equal(serve.New().Proxy.Schedule))
		Expect(c.NodeName).NotTo(BeEmpty())
	})
})

var _ = Describe("the namespace of 'kubectl usher exec'", func() {
	kubeconfig := func(namespace string) string {
		return file("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, namespace: " + namespace + "}}]\n" +
			"clusters: [{name: c, cluster: {server: \"http://127.0.0.1:1\"}}]\n")
	}
	namespaceOf := func(args ...string) string {
		GinkgoHelper()
		var e execCommand
		cmd := newExecOf(&e)
		Expect(cmd.ParseFlags(args)).To(Succeed())
		Expect(e.complete(cmd)).To(Succeed())
		return e.namespace
	}

	It("comes from -n, else from --kubeconfig, else from KUBECONFIG", func() {
		home := GinkgoT().TempDir()
		GinkgoT().Setenv("HOME", home)
		GinkgoT().Setenv("KUBECONFIG", kubeconfig("from-environment"))
		Expect(namespaceOf()).To(Equal("from-environment"))
		Expect(namespaceOf("--kubeconfig", kubeconfig("from-flag"))).To(Equal("from-flag"))
		Expect(namespaceOf("--kubeconfig", kubeconfig("from-flag"), "-n", "named")).To(Equal("named"))
		Expect(namespaceOf("--manifests=/tmp")).To(Equal("default"))
	})
})
