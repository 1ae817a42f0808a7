package admin_test

import (
	"net"
	"net/http"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/outcome"
)

// These specs check texts for users that could be false: see the table in docs/observing.md.
var _ = Describe("a text for users", func() {
	It("does not call failures consecutive if a probe succeeded in between", func() {
		n := newNode()
		n.proxy.Apply([]config.Service{service("web", "10.96.0.1", answering(), answering())})
		e := n.proxy.Status()[0].Endpoints[0]
		quarantined := func() *api.Quarantine {
			GinkgoHelper()
			var detail api.ServiceDetail
			Expect(n.get("/services/default/web", &detail)).To(Equal(http.StatusOK))
			return detail.Details[0].Endpoints[0].Quarantine
		}
		policy := balance.Policy{First: time.Minute, Max: time.Hour, UntilProbe: true}
		report := func(kind balance.Kind) {
			now := time.Now()
			e.Report(balance.Report{Kind: kind, Start: now, Now: now, Err: net.ErrClosed}, policy)
		}
		report(balance.ConnectFailed)
		Expect(quarantined().Count()).To(Equal("1 failure"))
		report(balance.RecheckPassed)
		Expect(quarantined()).To(BeNil(), "the endpoint recovers in between")
		time.Sleep(time.Millisecond)
		report(balance.ConnectFailed)
		Expect(quarantined().Count()).To(Equal("2 failures, with no client connected in between"))
		report(balance.Connected)
		time.Sleep(time.Millisecond)
		report(balance.ConnectFailed)
		Expect(quarantined().Count()).To(Equal("1 failure"), "a client was connected in between")
	})

	It("shows a UDP session that only sends as sending, with its bytes so far", func() {
		sink, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(sink.Close)
		n := newNode()
		statsd := service("statsd", "10.96.0.1", sink.LocalAddr().(*net.UDPAddr).AddrPort())
		statsd.Ports[0].Protocol = config.UDP
		n.proxy.Apply([]config.Service{statsd})
		client, err := net.Dial("udp4", n.proxy.Status()[0].Listeners[0].String())
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(client.Close)
		open := func() (c api.Connection) {
			var list api.ConnectionList
			if n.get("/connections", &list); len(list.Items) == 1 {
				c = list.Items[0]
			}
			return c
		}
		for range 3 {
			_, err = client.Write(make([]byte, 100))
			Expect(err).NotTo(HaveOccurred())
		}
		Eventually(open).WithTimeout(30 * time.Second).Should(And(HaveField("State", api.Sending), HaveField("BytesToEndpoint", int64(300)), HaveField("BytesToClient", int64(0))))

		_, from, err := sink.ReadFromUDPAddrPort(make([]byte, 200))
		Expect(err).NotTo(HaveOccurred())
		_, err = sink.WriteToUDPAddrPort(make([]byte, 40), from)
		Expect(err).NotTo(HaveOccurred())
		Eventually(open).WithTimeout(30 * time.Second).Should(And(HaveField("State", api.Established), HaveField("BytesToEndpoint", int64(300)), HaveField("BytesToClient", int64(40))))

		var list api.ServiceList
		Expect(n.get("/services", &list)).To(Equal(http.StatusOK))
		Expect(list.Items[0].Totals).To(And(HaveField("BytesToEndpoint", int64(300)), HaveField("BytesToClient", int64(40))))
		var detail api.ServiceDetail
		Expect(n.get("/services/default/statsd", &detail)).To(Equal(http.StatusOK))
		Expect(detail.Details[0].Endpoints[0]).To(And(HaveField("BytesToEndpoint", int64(300)), HaveField("BytesToClient", int64(40))))
		var status api.Status
		Expect(n.get("/status", &status)).To(Equal(http.StatusOK))
		Expect(status.Totals).To(And(HaveField("BytesToEndpoint", int64(300)), HaveField("BytesToClient", int64(40))))
	})

	It("shows a TCP client as connecting only while it has no endpoint", func() {
		n := newNode()
		n.proxy.Apply([]config.Service{service("web", "10.96.0.1", answering())})
		life := &conn.Record{ID: 7, Port: &conn.Port{ID: n.proxy.Status()[0].Port.ID, Protocol: config.TCP, Observers: []conn.Observer{n.proxy.Trace}}, From: netip.MustParseAddrPort("192.0.2.2:1"), Start: time.Now()}
		life.Accepted()
		var c api.Connection
		Expect(n.get("/connections/7", &c)).To(Equal(http.StatusOK))
		Expect(c.State).To(Equal(api.Connecting))
		life.Attempted(time.Now(), conn.Attempt{Endpoint: netip.MustParseAddrPort("10.0.0.1:80")})
		Expect(n.get("/connections/7", &c)).To(Equal(http.StatusOK))
		Expect(c.State).To(Equal(api.Established))
		life.Closed(time.Now(), outcome.Result{Outcome: outcome.ClientClosed}, netip.MustParseAddrPort("10.0.0.1:80"))
		Expect(n.get("/connections/7", &c)).To(Equal(http.StatusOK))
		Expect(c.State).To(Equal(api.Ended))
	})
})
