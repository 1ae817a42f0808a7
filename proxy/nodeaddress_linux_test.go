package proxy_test

import (
	"context"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/stream"
)

// redirected returns a Service with one TCP port of a family and these VIPs, as a Proxy serves it by redirects.
func redirected(family config.Family, vips []config.VIP, servers ...netip.AddrPort) proxy.PortView {
	GinkgoHelper()
	o := defaults()
	o.SCTP = stream.SCTPOff
	o.Portal = withTraits{o.Portal, portal.Traits{Redirects: true}}
	o.Servers = servers
	p := proxy.New(o)
	DeferCleanup(p.Stop)
	name := types.NamespacedName{Namespace: "of-proxy", Name: "web"}
	port := config.ServicePort{ID: config.PortID{Namespace: name.Namespace, Service: name.Name, Family: family}, Protocol: config.TCP, VIPs: vips}
	p.Apply([]config.Service{{Name: name, Ports: []config.ServicePort{port}}})
	p.Check(context.Background())
	return p.InspectService(name)[0]
}

var _ = Describe("a node port on which usher itself listens", func() {
	servers := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:10249"), {}}
	nodePorts := func(at netip.Addr) []config.VIP {
		return []config.VIP{{Kind: config.NodePort, Addr: at, Port: 10249}, {Kind: config.NodePort, Addr: at, Port: 30080}}
	}

	It("is not served, and reported", func() {
		v := redirected(config.IPv4, nodePorts(netip.IPv4Unspecified()), servers...)
		Expect(v.Problem).To(And(HaveField("Reason", proxy.ReasonNode), HaveField("Err", MatchError("NodePort 10249: usher itself listens on this port"))))
		Expect(v.Rules).To(ConsistOf(HaveField("Target.Port", BeEquivalentTo(30080))))
	})

	It("is served in the other family", func() {
		v := redirected(config.IPv6, nodePorts(netip.IPv6Unspecified()), servers...)
		Expect(v.Problem).To(BeNil())
		Expect(v.Rules).To(HaveLen(2))
	})
})

var _ = Describe("an explanation of a node port", func() {
	It("says at which addresses it is not served", func() {
		o := defaults()
		o.SCTP, o.Portal = stream.SCTPOff, withTraits{o.Portal, portal.Traits{Redirects: true}}
		p := proxy.New(o)
		DeferCleanup(p.Stop)
		name := types.NamespacedName{Namespace: "of-proxy", Name: "explained"}
		all := []config.Endpoint{{Addr: netip.MustParseAddrPort("192.0.2.7:80"), Ready: true}}
		p.Apply([]config.Service{{Name: name, Ports: []config.ServicePort{{
			ID: config.PortID{Namespace: name.Namespace, Service: name.Name, Family: config.IPv4}, Protocol: config.TCP, Policy: config.DefaultPolicy(),
			VIPs:      []config.VIP{{Kind: config.NodePort, Addr: netip.IPv4Unspecified(), Port: 30080}},
			Endpoints: all, Cluster: all, Internal: all, External: all,
		}}}})
		cause := func(vip string) proxy.Cause {
			GinkgoHelper()
			x, err := p.Explain(proxy.Question{Service: name, VIP: netip.MustParseAddrPort(vip)}, time.Now())
			Expect(err).NotTo(HaveOccurred())
			return x.Cause
		}
		Expect(cause("0.0.0.0:30080")).To(Equal(proxy.NoCause))
		Expect(cause("127.0.0.1:30080")).To(Equal(proxy.NoCause))
		Expect(cause("192.0.2.1:30080")).To(Equal(proxy.HasProblem), "of no interface")
		p.SetNodePortAddresses([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})
		Expect(cause("127.0.0.1:30080")).To(Equal(proxy.HasProblem), "not in --nodeport-addresses")
	})
})

var _ = Describe("the unused ports of a cluster IP", func() {
	It("are left to the node's processes if the cluster IP is an address of the node", func() {
		var vips []config.VIP
		for _, vip := range []string{"127.0.0.1", "192.0.2.1"} {
			vips = append(vips, config.VIP{Kind: config.ClusterIP, Addr: netip.MustParseAddr(vip), Port: 80})
		}
		sole := map[string]bool{}
		for _, r := range redirected(config.IPv4, vips).Rules {
			sole[r.Target.Addr.String()] = r.Sole
		}
		Expect(sole).To(Equal(map[string]bool{"127.0.0.1": false, "192.0.2.1": true}))
	})
})
