package portaltest

import (
	"context"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/portal"
)

var (
	VIP4, VIP6         = netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd96::10")
	Web4, Web6         = To(portal.TCP, VIP4, 80), To(portal.TCP, VIP6, 80)
	DNS4, DNS6         = To(portal.UDP, VIP4, 53), To(portal.UDP, VIP6, 53)
	WebNode4, WebNode6 = To(portal.TCP, portal.IPv4.Any(), 30080), To(portal.TCP, portal.IPv6.Any(), 30080)
	NodeIP4, NodeIP6   = netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd01::1")
	Localhost4         = netip.MustParseAddr("127.0.0.1")
	Background         = context.Background()
)

// Soon is the time to wait for a reply that must not arrive, and ReplyTimeout the time for one that must.
const (
	Soon         = 200 * time.Millisecond
	ReplyTimeout = 10 * time.Second
)

// Open creates a portal on the node, which has no portals of other modes.
func (n *Net) Open(mode portal.Mode, opts portal.Options) portal.Portal {
	GinkgoHelper()
	var p portal.Portal
	n.Node.Do(func() {
		var err error
		p, err = mode.New(Background, opts)
		Expect(err).NotTo(HaveOccurred())
	})
	return p
}

// Publish opens the listeners for targets, and applies the rules that redirect to them.
func (n *Net) Publish(p portal.Portal, word string, targets ...portal.Target) (binds []portal.Bind, rules []portal.Rule) {
	GinkgoHelper()
	binds = p.Listen("default/web", targets)
	for i, b := range binds {
		port := n.Node.Serve(b, word)
		binds[i].Addr = netip.AddrPortFrom(b.Addr.Addr(), port)
		for _, t := range b.Targets {
			rules = append(rules, portal.Rule{Target: t, LocalPort: port, Comment: "default/" + word + ":http"})
		}
	}
	n.Apply(p, rules, nil)
	return binds, rules
}

func (n *Net) Apply(p portal.Portal, set []portal.Rule, gone []portal.Target) {
	GinkgoHelper()
	n.Node.Do(func() { Expect(p.Apply(Background, set, gone)).To(BeDone()) })
}

func (n *Net) Check(p portal.Portal) int {
	GinkgoHelper()
	var res portal.Result
	n.Node.Do(func() { res = p.Check(Background) })
	Expect(res).To(BeDone())
	return len(res.Repaired)
}

// Watch watches p until the spec ends. The returned channel must close then.
func (n *Net) Watch(p portal.Portal) <-chan struct{} {
	GinkgoHelper()
	ctx, cancel := context.WithCancel(Background)
	var notified <-chan struct{}
	n.Node.Do(func() {
		var err error
		notified, err = p.(portal.Watcher).Watch(ctx)
		Expect(err).NotTo(HaveOccurred())
	})
	DeferCleanup(func() {
		cancel()
		Eventually(notified).Should(BeClosed())
	})
	return notified
}

func (n *Net) Remove(p portal.Portal) {
	GinkgoHelper()
	n.Node.Do(func() { Expect(p.Remove(Background)).To(Succeed()) })
}

func At(t portal.Target, addr netip.Addr) portal.Target { t.Addr = addr; return t }

// KeepAsking connects from the Pod to t repeatedly until stop is called. stop returns the
// answers that differ from want.
func (n *Net) KeepAsking(t portal.Target, want string) (stop func() (wrong []string)) {
	end, wrong := make(chan struct{}), make(chan []string)
	go func() {
		defer GinkgoRecover()
		var others []string
		defer func() { wrong <- others }()
		for {
			select {
			case <-end:
				return
			default:
			}
			if answer := n.Pod.AskFrom(t, 0, 2*time.Second); answer != want {
				others = append(others, answer)
			}
		}
	}()
	return func() []string { close(end); return <-wrong }
}
