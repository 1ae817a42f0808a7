package admin_test

import (
	"net"
	"net/netip"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/admin"
	"github.com/usherproxy/usher/test/portaltest"
)

var _ = Describe("health check node ports in configured networks", func() {
	It("follow the node's addresses, each on its own", func() {
		log := logrus.New()
		log.SetOutput(GinkgoWriter)
		var problem error
		h := &admin.HealthChecks{Serving: func() bool { return true }, Log: log, OnProblem: func(_ types.NamespacedName, err error) { problem = err }}
		DeferCleanup(h.Close)
		host := portaltest.NewHost()
		address := func(change, addr string) {
			GinkgoHelper()
			host.Sh("ip address " + change + " " + addr + "/32 dev lo")
			host.Do(h.Retry)
		}
		answers := func(addr string) (does bool) {
			host.Do(func() {
				c, err := net.Dial("tcp", addr+":32001")
				if does = err == nil; does {
					c.Close()
				}
			})
			return does
		}
		host.Do(func() {
			h.SetNetworks([]netip.Prefix{netip.MustParsePrefix("10.50.0.0/24")})
			h.Apply([]config.Service{{Name: types.NamespacedName{Namespace: "default", Name: "web"}, HealthCheckNodePort: 32001}})
		})
		Expect(problem).To(MatchError(ContainSubstring("no address")))

		address("add", "10.50.0.1")
		Expect(answers("10.50.0.1")).To(BeTrue())
		Expect(problem).To(BeNil())

		host.Sh("ip address add 10.50.0.3/32 dev lo")
		var other net.Listener
		host.Do(func() {
			var err error
			other, err = net.Listen("tcp", "10.50.0.3:32001")
			Expect(err).NotTo(HaveOccurred())
		})
		address("add", "10.50.0.2")
		Expect(answers("10.50.0.2")).To(BeTrue(), "the other process has one address")
		Expect(problem).To(MatchError(syscall.EADDRINUSE))
		Expect(other.Close()).To(Succeed())

		address("delete", "10.50.0.1")
		Expect(problem).To(BeNil())
		host.Sh("ip address add 10.50.0.1/32 dev lo")
		Expect(answers("10.50.0.1")).To(BeFalse(), "its listener is closed")
		Expect(answers("10.50.0.2")).To(BeTrue())
		Expect(answers("10.50.0.3")).To(BeTrue())
	})
})
