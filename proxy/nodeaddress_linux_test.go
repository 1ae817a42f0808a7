package proxy_test

import (
	"context"
	"net/netip"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/stream"
)

var _ = Describe("a node port on which usher itself listens", func() {
	It("is not served, and reported", func() {
		o := defaults()
		o.SCTP = stream.SCTPOff
		o.Portal = withTraits{o.Portal, portal.Traits{Redirects: true}}
		o.Servers = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:10249"), {}}
		p := proxy.New(o)
		DeferCleanup(p.Stop)
		name := types.NamespacedName{Namespace: "of-proxy", Name: "web"}
		port := config.ServicePort{ID: config.PortID{Namespace: name.Namespace, Service: name.Name, Family: config.IPv4}, Protocol: config.TCP}
		for _, number := range []uint16{10249, 30080} {
			port.VIPs = append(port.VIPs, config.VIP{Kind: config.NodePort, Addr: netip.IPv4Unspecified(), Port: number})
		}
		p.Apply([]config.Service{{Name: name, Ports: []config.ServicePort{port}}})
		p.Check(context.Background())
		v := p.InspectService(name)[0]
		Expect(v.Problem).To(And(HaveField("Reason", proxy.ReasonNode), HaveField("Err", MatchError("NodePort 10249: usher itself listens on this port"))))
		Expect(v.Rules).To(ConsistOf(HaveField("Target.Port", BeEquivalentTo(30080))))
	})
})

var _ = Describe("the unused ports of a cluster IP", func() {
	It("are left to the node's processes if the cluster IP is an address of the node", func() {
		o := defaults()
		o.SCTP = stream.SCTPOff
		o.Portal = withTraits{o.Portal, portal.Traits{Redirects: true}}
		p := proxy.New(o)
		DeferCleanup(p.Stop)
		name := types.NamespacedName{Namespace: "of-proxy", Name: "web"}
		port := config.ServicePort{ID: config.PortID{Namespace: name.Namespace, Service: name.Name, Family: config.IPv4}, Protocol: config.TCP}
		for _, vip := range []string{"127.0.0.1", "192.0.2.1"} {
			port.VIPs = append(port.VIPs, config.VIP{Kind: config.ClusterIP, Addr: netip.MustParseAddr(vip), Port: 80})
		}
		p.Apply([]config.Service{{Name: name, Ports: []config.ServicePort{port}}})
		sole := map[string]bool{}
		for _, r := range p.InspectService(name)[0].Rules {
			sole[r.Target.Addr.String()] = r.Sole
		}
		Expect(sole).To(Equal(map[string]bool{"127.0.0.1": false, "192.0.2.1": true}))
	})
})
