package main

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/usherproxy/usher/cmd/usher/daemon/kubeproxy"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/admin"
)

func TestFlagsOfKubeProxysAreTaken(t *testing.T) {
	g := NewWithT(t)
	var r runCommand
	cmd := newRunOf(&r)
	g.Expect(cmd.ParseFlags([]string{"--hostname-override=Worker-1", "--healthz-bind-address=127.0.0.1", "--proxy-mode=iptables", "--node-name=worker-2",
		"--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=cali",
		"-v=4", "--masquerade-all", "--conntrack-min=7", "--master=https://192.0.2.1"})).To(Succeed())
	warnings, err := r.readKubeProxyConfig(cmd.Flags(), "", r.kubeProxy.given(cmd.Flags()))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(warnings).To(ConsistOf(ContainSubstring("--masquerade-all (")))
	g.Expect(r.nodeName).To(Equal("worker-2"), "usher's own flag wins")
	g.Expect(r.adminFlags.healthz).To(Equal("127.0.0.1:10256"))
	g.Expect(r.proxyFlags.portal).To(Equal("iptables"))
	g.Expect(r.conntrack.Min).To(Equal(7))
	g.Expect(r.proxyFlags.podInterfaces).To(Equal(portal.Interfaces("cali+")))
	g.Expect(r.cluster.Server).To(Equal("https://192.0.2.1"))
	g.Expect(allFlags(cmd)).To(And(HaveKey("hostname-override"), Not(HaveKey("oom-score-adj"))))

	g.Expect(cmd.ParseFlags([]string{"--no-such-flag"})).NotTo(Succeed())
	g.Expect(cmd.UsageString()).NotTo(ContainSubstring("hostname-override"))
}

// localSources is a portal that keeps what it is told of this node's Pods.
type localSources struct {
	portal.Portal
	pods []netip.Prefix
}

func (p *localSources) SetLocalSources(pods []netip.Prefix) { p.pods = pods }

func TestPodsAreToldByNetworksOrByInterfaces(t *testing.T) {
	g := NewWithT(t)
	ours := netip.MustParsePrefix("10.244.1.0/24")
	for interfaces, want := range map[portal.Interfaces][]netip.Prefix{"": {ours}, "usher-none+": nil} {
		var r runCommand
		newRunOf(&r)
		r.proxyFlags.podInterfaces = interfaces
		log, logged := logtest.NewNullLogger()
		none, err := portal.New(t.Context(), portal.ModeNone, r.proxyFlags.portalOptions(log))
		g.Expect(err).NotTo(HaveOccurred())
		told := &localSources{Portal: none}
		s := server{flags: &r.proxyFlags, noNode: true, health: &admin.Health{}, proxy: r.proxyFlags.newProxy(told, log)}
		s.nodeChanged(config.Node{PodCIDRs: []netip.Prefix{ours}})
		g.Expect(told.pods).To(Equal(want))
		if interfaces != "" {
			g.Expect(logged.AllEntries()).To(HaveLen(1), "there is no such interface")
			g.Expect(logged.LastEntry().Level).To(Equal(logrus.WarnLevel))
		}
	}
}

func TestConntrackSettingsAreMade(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	file := func(name, value string) string {
		path := filepath.Join(dir, name)
		g.Expect(os.WriteFile(path, []byte(value), 0o600)).To(Succeed())
		return path
	}
	maximum, established, closeWait := file("nf_conntrack_max", "1000\n"), file("nf_conntrack_tcp_timeout_established", "432000\n"), file("nf_conntrack_tcp_timeout_close_wait", "60\n")
	log, logged := logtest.NewNullLogger()
	apply := func(c kubeproxy.Conntrack) { g.Expect(applyConntrack(dir, c, 4, log)).To(Succeed()) }
	is := func(path, want string) {
		t.Helper()
		g.Expect(os.ReadFile(path)).To(BeEquivalentTo(want))
	}

	apply(kubeproxy.Conntrack{MaxPerCore: 1000, Min: 2000, TCPEstablished: time.Hour})
	is(maximum, "8000") // two entries for each of 4 × 1000
	is(established, "3600")
	is(closeWait, "60\n")
	apply(kubeproxy.Conntrack{MaxPerCore: 1000, Min: 5000})
	is(maximum, "10000")
	apply(kubeproxy.Conntrack{MaxPerCore: 1})
	is(maximum, "10000") // never lowered
	g.Expect(logged.AllEntries()).To(HaveLen(3))

	g.Expect(applyConntrack(dir, kubeproxy.Conntrack{UDP: time.Second, UDPStream: time.Second}, 4, log)).
		To(MatchError(And(ContainSubstring("nf_conntrack_udp_timeout=1"), ContainSubstring("nf_conntrack_udp_timeout_stream=1"))), "all that cannot be written")
	g.Expect(logged.AllEntries()).To(HaveLen(3))
}

func TestAChangedConfigurationIsTold(t *testing.T) {
	g := NewWithT(t)
	const header = "apiVersion: " + kubeproxy.APIVersion + "\nkind: " + kubeproxy.Kind + "\n"
	path := filepath.Join(t.TempDir(), "config.conf")
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
	g.Expect(os.WriteFile(path+".new", []byte(header+"mode: nftables\n"), 0o600)).To(Succeed())
	g.Expect(os.Rename(path+".new", path)).To(Succeed())
	g.Eventually(said).WithTimeout(10 * time.Second).Should(gbytes.Say(`The configuration has changed \(mode\)`))
}
