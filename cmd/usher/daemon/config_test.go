package daemon

import (
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/modes"
)

var _ = Describe("a Config", func() {
	It("is valid with the values of Defaults", func() {
		c := Defaults()
		Expect(c.Check()).To(Succeed())
	})

	It("is rejected without a logger or without the values of Defaults", func() {
		_, err := New(Defaults())
		Expect(err).To(MatchError("daemon: Config.Log is required"))
		_, err = New(Config{Log: logrus.New()})
		Expect(err).To(MatchError("--dial-timeouts: at least one duration is required"))
	})

	refused := func(says string, change func(c *Config)) TableEntry { return Entry("error: "+says, says, change) }
	DescribeTable("is rejected with an error that names the setting",
		func(says string, change func(c *Config)) {
			c := Defaults()
			c.Log = logrus.New()
			change(&c)
			_, err := New(c)
			Expect(err).To(MatchError(HavePrefix(says)))
		},
		refused(`--dial-timeouts: invalid value "-1s": must be greater than 0`, func(c *Config) { c.Proxy.Schedule = []time.Duration{time.Second, -time.Second} }),
		refused(`--portal-check-interval: invalid value "0s": must be at least 100ms`, func(c *Config) { c.Proxy.CheckInterval = 0 }),
		refused(`--keepalive: invalid value "1ms": must be at least 1s`, func(c *Config) { c.Proxy.Keepalive = time.Millisecond }),
		refused(`--probe-interval: invalid value "999ms": must be at least 1s`, func(c *Config) { c.Policy.Probe.Interval = 999 * time.Millisecond }),
		refused(`--probe-fall: invalid value "101": must be at most 100`, func(c *Config) { c.Policy.Probe.Fall = 101 }),
		refused(`--drain-timeout: invalid value "-1ns": must be at least 0s`, func(c *Config) { c.DrainTimeout = -1 }),
		refused(`--max-connections: invalid value "-1": must be at least 0`, func(c *Config) { c.Proxy.MaxConnections = -1 }),
		refused(`--trace-events: invalid value "0": must be at least 1`, func(c *Config) { c.TraceEvents = 0 }),
		refused(`--trace-events: invalid value "999999999999": must be at most 10000000`, func(c *Config) { c.TraceEvents = 999999999999 }),
		refused(`--trace-events: invalid value "10000001": must be at most 10000000`, func(c *Config) { c.TraceEvents = 10000001 }),
		refused(`--max-affinity: invalid value "100000001": must be at most 100000000`, func(c *Config) { c.Proxy.AffinityTotal = 100000001 }),
		refused(`--max-connections-per-endpoint: invalid value "1000001": must be at most 1000000`, func(c *Config) { c.Policy.EndpointLimit = 1000001 }),
		refused(`--max-client-share: invalid value "101": must be from 1 to 100 (percent)`, func(c *Config) { c.Proxy.MaxClientShare = 101 }),
	)
})

// within returns the addresses on which node ports are served.
func within(networks []netip.Prefix, addrs ...string) (in []string) {
	for _, a := range addrs {
		for _, p := range networks {
			if p.Contains(netip.MustParseAddr(a)) {
				in = append(in, a)
				break
			}
		}
	}
	return in
}

// addrs parses addresses.
func addrs(texts ...string) (list []netip.Addr) {
	for _, t := range texts {
		list = append(list, netip.MustParseAddr(t))
	}
	return list
}

var _ = Describe("node ports", func() {
	all := []string{"127.0.0.1", "192.0.2.1", "192.0.2.2", "::1", "2001:db8::1"}

	It("are served on all addresses by default", func() {
		Expect(NodePorts{}.networks(addrs("192.0.2.1"))).To(BeNil())
	})

	It("limited to networks of one IP family stay on all addresses of the other", func() {
		n := NodePorts{Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
		Expect(within(n.networks(nil), all...)).To(Equal([]string{"192.0.2.1", "192.0.2.2", "::1", "2001:db8::1"}))
		n.Networks = append(n.Networks, netip.MustParsePrefix("2001:db8::/32"))
		Expect(within(n.networks(nil), all...)).To(Equal([]string{"192.0.2.1", "192.0.2.2", "2001:db8::1"}))
	})

	It("limited to primary addresses are nowhere until these are known, and nowhere in a family that has none", func() {
		n := NodePorts{Primary: true}
		Expect(n.networks(nil)).NotTo(BeEmpty(), "an empty list would mean all addresses")
		Expect(within(n.networks(nil), all...)).To(BeEmpty())
		Expect(within(n.networks(addrs("192.0.2.1")), all...)).To(Equal([]string{"192.0.2.1"}))
		Expect(within(n.networks(addrs("192.0.2.2", "2001:db8::1")), all...)).To(Equal([]string{"192.0.2.2", "2001:db8::1"}))
	})

	It("limited to primary addresses and networks are served on both only", func() {
		n := NodePorts{Primary: true, Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/32"), netip.MustParsePrefix("::1/128")}}
		Expect(within(n.networks(addrs("192.0.2.1")), all...)).To(Equal([]string{"192.0.2.1", "192.0.2.2", "::1"}))
		Expect(within(n.networks(nil), all...)).To(Equal([]string{"192.0.2.2", "::1"}))
	})

	It("limited to primary addresses use the configured node IP for its IP family", func() {
		n := NodePorts{Primary: true, NodeIP: netip.MustParseAddr("192.0.2.2")}
		Expect(within(n.networks(addrs("192.0.2.1", "2001:db8::1")), all...)).To(Equal([]string{"192.0.2.2", "2001:db8::1"}))
	})
})

var _ = Describe("the connection tracking settings", func() {
	DescribeTable("use the number of CPUs of the node", func(list string, n int) {
		path := filepath.Join(GinkgoT().TempDir(), "online")
		Expect(os.WriteFile(path, []byte(list), 0o600)).To(Succeed())
		Expect(onlineCPUs(path)).To(Equal(n))
	},
		Entry("one CPU", "0\n", 1),
		Entry("a range of CPUs", "0-63\n", 64),
		Entry("a list with gaps", "0-3,6,8-9\n", 7),
		Entry("an invalid list, which falls back to the CPUs of the process", "?", runtime.NumCPU()),
	)

	It("have kube-proxy's defaults", func() {
		dir := GinkgoT().TempDir()
		for _, name := range []string{"max", "buckets", "tcp_timeout_established", "tcp_timeout_close_wait"} {
			Expect(os.WriteFile(filepath.Join(dir, "nf_conntrack_"+name), []byte("1000\n"), 0o600)).To(Succeed())
		}
		log, _ := logtest.NewNullLogger()
		Expect(DefaultConntrack.write(dir, 8, log)).To(Succeed())
		for name, want := range map[string]string{"max": "524288", "buckets": "131072", "tcp_timeout_established": "86400", "tcp_timeout_close_wait": "3600"} {
			Expect(os.ReadFile(filepath.Join(dir, "nf_conntrack_"+name))).To(BeEquivalentTo(want), name)
		}
		Expect(DefaultConntrack.write(filepath.Join(dir, "none"), 8, log)).To(Succeed(), "without connection tracking")
	})

	It("are written without lowering the maximum, and an error names each failed one", func() {
		dir := GinkgoT().TempDir()
		file := func(name, value string) string {
			path := filepath.Join(dir, name)
			Expect(os.WriteFile(path, []byte(value), 0o600)).To(Succeed())
			return path
		}
		file("nf_conntrack_buckets", "100000\n")
		maximum, established, closeWait := file("nf_conntrack_max", "1000\n"), file("nf_conntrack_tcp_timeout_established", "432000\n"), file("nf_conntrack_tcp_timeout_close_wait", "60\n")
		log, logged := logtest.NewNullLogger()
		apply := func(c Conntrack) { GinkgoHelper(); Expect(c.write(dir, 4, log)).To(Succeed()) }
		is := func(path, want string) { GinkgoHelper(); Expect(os.ReadFile(path)).To(BeEquivalentTo(want)) }

		apply(Conntrack{MaxPerCore: 1000, Min: 2000, TCPEstablished: time.Hour})
		is(maximum, "8000") // two entries for each of 4 × 1000
		is(established, "3600")
		is(closeWait, "60\n")
		apply(Conntrack{MaxPerCore: 1000, Min: 5000})
		is(maximum, "10000")
		apply(Conntrack{MaxPerCore: 1})
		is(maximum, "10000")
		Expect(logged.AllEntries()).To(HaveLen(3))

		Expect(Conntrack{UDP: time.Second, UDPStream: time.Second}.write(dir, 4, log)).
			To(And(MatchError(And(ContainSubstring("nf_conntrack_udp_timeout=1"), ContainSubstring("nf_conntrack_udp_timeout_stream=1"))), MatchError(fs.ErrNotExist)))
		Expect(logged.AllEntries()).To(HaveLen(3))
	})
})

// localSources is a portal that records the networks of this node's Pods.
type localSources struct {
	portal.Portal
	portal.Settings
}

func (p *localSources) Set(change func(*portal.Settings)) { change(&p.Settings) }

var _ = Describe("this node's Pods", func() {
	ours := netip.MustParsePrefix("10.244.1.0/24")
	DescribeTable("are identified by Pod networks, or by interfaces if configured",
		func(interfaces portal.Interfaces, want []netip.Prefix, warnings int) {
			log, logged := logtest.NewNullLogger()
			c := Defaults()
			c.Log, c.Portal.PodInterfaces = log, interfaces
			d, err := New(c)
			Expect(err).NotTo(HaveOccurred())
			none, err := modes.New(GinkgoT().Context(), "none", portal.Options{Log: log})
			Expect(err).NotTo(HaveOccurred())
			spy := &localSources{Portal: none}
			d.newProxy(spy)
			d.nodeChanged(config.Node{PodCIDRs: []netip.Prefix{ours}})
			Expect(spy.LocalSources).To(Equal(want))
			Expect(logged.AllEntries()).To(HaveLen(warnings), "warnings about missing interfaces")
		},
		Entry("networks", portal.Interfaces(""), []netip.Prefix{ours}, 0),
		Entry("interfaces", portal.Interfaces("usher-none+"), nil, 1),
	)
})
