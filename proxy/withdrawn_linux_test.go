package proxy_test

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy"
)

// hookedPortal calls a hook before each change of rules.
type hookedPortal struct {
	portal.Portal
	applies func()
}

func (p *hookedPortal) Apply(ctx context.Context, set []portal.Rule, gone []portal.Target) portal.Result {
	p.applies()
	return p.Portal.Apply(ctx, set, gone)
}

var _ = Describe("a listener that is removed", func() {
	It("refuses clients before the portal's rules change, even if another process has its socket", func() {
		o := defaults()
		pt := &hookedPortal{o.Portal, func() {}}
		o.Portal = pt
		p := proxy.New(o)
		DeferCleanup(func() { stop(p) })
		backend, err := net.Listen("tcp", "127.0.0.1:0")
		Expect(err).NotTo(HaveOccurred())
		defer backend.Close()
		endpoint := config.Endpoint{Addr: backend.Addr().(*net.TCPAddr).AddrPort(), Ready: true}
		web := config.Service{Name: types.NamespacedName{Namespace: "default", Name: "web"}, Ports: []config.ServicePort{{
			ID: config.PortID{Namespace: "default", Service: "web", Family: config.IPv4}, Protocol: config.TCP, Policy: config.DefaultPolicy(),
			VIPs:      []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}},
			Endpoints: []config.Endpoint{endpoint}, Cluster: []config.Endpoint{endpoint}, Internal: []config.Endpoint{endpoint}, External: []config.Endpoint{endpoint},
		}}}
		p.Apply([]config.Service{web})
		listener := p.Status()[0].Listeners[0].String()

		sockets, _, resume, _, err := p.HandOver()
		Expect(err).NotTo(HaveOccurred())
		copies := 0
		for s := range sockets {
			defer s.File.Close() // like a keeper's, which closes its duplicates a while later
			copies++
		}
		resume()
		Expect(copies).To(BeNumerically(">=", 1))

		calls := 0
		pt.applies = func() {
			calls++
			c, err := net.DialTimeout("tcp", listener, time.Second)
			if err == nil {
				c.Close()
			}
			Expect(err).To(MatchError(syscall.ECONNREFUSED))
		}
		p.Apply([]config.Service{{Name: web.Name}})
		Expect(calls).To(BeNumerically(">=", 1))
	})
})
