package admin_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("an endpoint that leaves some of its clients without a response", func() {
	// client is the current client. It waits for 300 ms after hang, and for long otherwise, as a busy machine may
	// respond late.
	var client atomic.Pointer[net.TCPConn]
	hang := func() { _ = client.Load().SetReadDeadline(time.Now().Add(300 * time.Millisecond)) }
	ask := func(c net.Conn) {
		GinkgoHelper()
		client.Store(c.(*net.TCPConn))
		Expect(c.SetReadDeadline(time.Now().Add(10 * time.Second))).To(Succeed())
		fmt.Fprint(c, "?")
		_, _ = c.Read(make([]byte, 5))
	}

	// served has two endpoints. The first leaves one of every n clients without a response (n = one), the second too
	// (n = others). 60 clients come one by one; those without a response reset the connection.
	served := func(one, others int64) (detail api.ServiceDetail, status api.Status, ended api.ConnectionList) {
		GinkgoHelper()
		n := newNode()
		hanging := func(every int64) func(net.Conn) {
			var clients atomic.Int64
			return func(c net.Conn) {
				request := make([]byte, 1)
				if _, err := io.ReadFull(c, request); err == nil {
					if clients.Add(1)%every != 0 {
						fmt.Fprint(c, "hello")
					} else {
						hang()
					}
				}
				_, _ = io.Copy(io.Discard, c)
			}
		}
		n.proxy.Apply([]config.Service{service("web", "10.96.0.1", lab.Backend(hanging(one)), lab.Backend(hanging(others)))})
		at := n.proxy.Status()[0].Listeners[0].String()
		for range 60 {
			c, err := net.Dial("tcp", at)
			Expect(err).NotTo(HaveOccurred())
			ask(c)
			Expect(c.(*net.TCPConn).SetLinger(0)).To(Succeed())
			c.Close()
		}
		Eventually(func() int64 { return n.proxy.Stats().Open }).WithTimeout(30 * time.Second).Should(BeZero())
		Expect(n.get("/services/default/web", &detail)).To(Equal(http.StatusOK))
		Expect(n.get("/status", &status)).To(Equal(http.StatusOK))
		Expect(n.get("/connections?state=ended&outcome=no-response&limit=1000", &ended)).To(Equal(http.StatusOK))
		return detail, status, ended
	}

	It("is unresponsive if the other endpoint responds", func() {
		detail, status, ended := served(2, 1e6)
		Expect(detail.State).To(Equal(api.ServiceDegraded))
		hangs, answers := detail.Details[0].Endpoints[0], detail.Details[0].Endpoints[1]
		aboutHalf := BeNumerically("~", 15, 2) // a response may be late on a busy machine
		Expect([]any{hangs.State, hangs.Failed}).To(Equal([]any{api.EndpointUnresponsive, int64(0)}))
		Expect(hangs.NoResponse).To(aboutHalf)
		Expect(hangs.NoResponseRecently).To(Equal(hangs.NoResponse))
		Expect(answers.State).To(Equal(api.EndpointReady))
		Expect(answers.NoResponse).To(BeNumerically("<=", 2))
		Expect(detail.Ends).To(HaveKeyWithValue("no-response", hangs.NoResponse+answers.NoResponse))
		Expect(status.Problems).To(ConsistOf(HaveField("Message", MatchRegexp(`unresponsive, no response for \d+ of 30 recent clients`))))
		Expect(ended.Total).To(BeEquivalentTo(hangs.NoResponse + answers.NoResponse))
		Expect(ended.Items).To(HaveEach(And(HaveField("End", "no-response"), HaveField("Outcomes", ContainElement("no-response")))))
	})

	It("is ready if the other endpoint does the same: the clients may be the cause", func() {
		detail, _, ended := served(2, 2)
		Expect(detail.State).To(Equal(api.ServiceOK))
		Expect(ended.Total).To(BeNumerically("~", 30, 2))
	})

	It("is ready if these clients are few", func() {
		detail, _, ended := served(15, 1e6)
		Expect(detail.State).To(Equal(api.ServiceOK))
		Expect(ended.Total).To(BeNumerically("~", 2, 2))
	})

	It("is ready if these clients only checked that the port is open", func() {
		n := newNode()
		hangs := func(c net.Conn) {
			if _, err := io.ReadFull(c, make([]byte, 1)); err == nil {
				hang()
			}
			_, _ = io.Copy(io.Discard, c)
		}
		answers := func(c net.Conn) {
			if _, err := io.ReadFull(c, make([]byte, 1)); err == nil {
				fmt.Fprint(c, "hello")
			}
		}
		n.proxy.Apply([]config.Service{service("web", "10.96.0.1", lab.Backend(hangs), lab.Backend(answers))})
		at := n.proxy.Status()[0].Listeners[0].String()
		for i := range 40 + 2 {
			c, err := net.Dial("tcp", at)
			Expect(err).NotTo(HaveOccurred())
			if i >= 40 { // one for each endpoint
				ask(c)
			}
			c.Close()
			Eventually(func() []int64 { // a connection may be in the listen queue for some time
				s := n.proxy.Stats()
				return []int64{s.Accepted, s.Open}
			}).WithTimeout(10 * time.Second).Should(Equal([]int64{int64(i) + 1, 0}))
		}
		var detail api.ServiceDetail
		Expect(n.get("/services/default/web", &detail)).To(Equal(http.StatusOK))
		endpoints := detail.Details[0].Endpoints
		Expect([]any{endpoints[0].Connected, endpoints[1].Connected}).To(HaveEach(int64(21)))
		Expect(endpoints[1].BytesToClient).To(BeEquivalentTo(5), "the other endpoint answers")
		Expect([]any{endpoints[0].State, endpoints[1].State}).To(HaveEach(api.EndpointReady))
	})

	It("is unresponsive while its clients still wait", func() {
		n := newNode()
		answers := func(c net.Conn) {
			_, _ = io.ReadFull(c, make([]byte, 1))
			fmt.Fprint(c, "hello")
			_, _ = io.Copy(io.Discard, c)
		}
		var hung atomic.Bool
		hangs := func(c net.Conn) {
			if hung.Load() {
				_, _ = io.Copy(io.Discard, c)
				return
			}
			answers(c)
		}
		n.proxy.Apply([]config.Service{service("web", "10.96.0.1", lab.Backend(hangs), lab.Backend(answers))})
		at := n.proxy.Status()[0].Listeners[0].String()
		state := func() api.EndpointState {
			var detail api.ServiceDetail
			Expect(n.get("/services/default/web", &detail)).To(Equal(http.StatusOK))
			return detail.Details[0].Endpoints[0].State
		}
		for i := range 60 {
			hung.Store(i >= 40)
			c, err := net.Dial("tcp", at)
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(c.Close)
			fmt.Fprint(c, "?")
			if i < 40 {
				Expect(io.ReadFull(c, make([]byte, 5))).To(Equal(5))
			}
		}
		Expect(state()).To(Equal(api.EndpointReady), "they have not waited for long")
		Eventually(state).WithTimeout(20 * time.Second).WithPolling(200 * time.Millisecond).Should(Equal(api.EndpointUnresponsive))
		var detail api.ServiceDetail
		Eventually(func() api.Endpoint { // the last client began to wait later than the first
			n.get("/services/default/web", &detail)
			return detail.Details[0].Endpoints[0]
		}).WithTimeout(20 * time.Second).Should(And(HaveField("WaitingLong", int64(10)), HaveField("NoResponse", int64(0))))
		Expect(detail.Trouble).To(HaveSuffix("unresponsive, no response for 10 of 30 recent clients"))
	})
})
