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
	// served has two endpoints, of which the first leaves one in so many without a response, the second one in others,
	// and 60 clients who reset the connection when they have waited for a moment.
	served := func(one, others int64) (detail api.ServiceDetail, status api.Status, ended api.ConnectionList) {
		GinkgoHelper()
		n := newNode()
		hanging := func(every int64) func(net.Conn) {
			var clients atomic.Int64
			return func(c net.Conn) {
				request := make([]byte, 1)
				if _, err := io.ReadFull(c, request); err == nil && clients.Add(1)%every != 0 {
					fmt.Fprint(c, "hello")
				}
				_, _ = io.Copy(io.Discard, c)
			}
		}
		n.proxy.Apply([]config.Service{service("web", "10.96.0.1", lab.Backend(hanging(one)), lab.Backend(hanging(others)))})
		at := n.proxy.Status()[0].Listeners[0].String()
		for range 60 {
			c, err := net.Dial("tcp", at)
			Expect(err).NotTo(HaveOccurred())
			fmt.Fprint(c, "?")
			Expect(c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))).To(Succeed())
			_, _ = c.Read(make([]byte, 5))
			Expect(c.(*net.TCPConn).SetLinger(0)).To(Succeed())
			c.Close()
		}
		Eventually(func() int64 { return n.proxy.Stats().Open }).WithTimeout(10 * time.Second).Should(BeZero())
		Expect(n.get("/services/default/web", &detail)).To(Equal(http.StatusOK))
		Expect(n.get("/status", &status)).To(Equal(http.StatusOK))
		Expect(n.get("/connections?state=ended&outcome=no-response&limit=1000", &ended)).To(Equal(http.StatusOK))
		return detail, status, ended
	}

	It("is unresponsive if the others answer", func() {
		detail, status, ended := served(2, 1e6)
		Expect(detail.State).To(Equal(api.ServiceDegraded))
		hangs, answers := detail.Details[0].Endpoints[0], detail.Details[0].Endpoints[1]
		Expect([]any{hangs.State, hangs.NoResponse, hangs.NoResponseLately, hangs.Failed}).To(Equal([]any{api.EndpointUnresponsive, int64(15), int64(15), int64(0)}))
		Expect([]any{answers.State, answers.NoResponse}).To(Equal([]any{api.EndpointReady, int64(0)}))
		Expect(detail.Ends).To(HaveKeyWithValue("no-response", int64(15)))
		Expect(status.Problems).To(ConsistOf(HaveField("Message", ContainSubstring("unresponsive, no response for 15 of 30 clients lately"))))
		Expect(ended.Total).To(Equal(15))
		Expect(ended.Items).To(HaveEach(And(HaveField("End", "no-response"), HaveField("Endpoint", hangs.Address), HaveField("Outcomes", ContainElement("no-response")))))
	})

	It("is ready if the others leave as many: it may be the clients", func() {
		detail, _, ended := served(2, 2)
		Expect(detail.State).To(Equal(api.ServiceOK))
		Expect(ended.Total).To(Equal(30))
	})

	It("is ready if these are few", func() {
		detail, _, ended := served(15, 1e6)
		Expect(detail.State).To(Equal(api.ServiceOK))
		Expect(ended.Total).To(Equal(2))
	})
})
