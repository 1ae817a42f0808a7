package admin_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/admin"
	"github.com/usherproxy/usher/proxy/admin/api"
)

var _ = Describe("clients that do not read", func() {
	// ask sends n requests for path on a connection with a small receive buffer.
	ask := func(n *node, path string, times int) net.Conn {
		GinkgoHelper()
		c, err := net.Dial("tcp", n.addr)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { c.Close() })
		Expect(c.(*net.TCPConn).SetReadBuffer(64 << 10)).To(Succeed())
		_, err = io.WriteString(c, strings.Repeat("GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n", times))
		Expect(err).NotTo(HaveOccurred())
		return c
	}
	status := func(n *node, path string) (int, error) {
		client := http.Client{Timeout: 10 * time.Second}
		res, err := client.Get(n.url + path)
		if err != nil {
			return 0, err
		}
		defer res.Body.Close()
		_, err = io.Copy(io.Discard, res.Body)
		return res.StatusCode, err
	}

	It("keep few large bodies in memory, and no other client out", func() {
		n := newNode()
		a := admin.NewAPI(n.proxy, admin.APIOptions{Health: n.health})
		a.SetMaxUnread(3 << 20)
		server, err := admin.Serve("127.0.0.1:0", admin.Handler(a, n.metrics.Registry, nil), admin.MaxAdminClients)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(server.Close)
		n.addr, n.url = server.Addr, "http://"+server.Addr
		big := config.Service{Name: types.NamespacedName{Namespace: "default", Name: "big"}}
		port := config.ServicePort{ID: config.PortID{Namespace: "default", Service: "big", Family: config.IPv4}, Protocol: config.TCP, Policy: config.DefaultPolicy(),
			VIPs: []config.VIP{{Kind: config.ClusterIP, Addr: netip.MustParseAddr("10.96.0.5"), Port: 80}}}
		for i := range 5000 {
			port.Cluster = append(port.Cluster, config.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 99, byte(i >> 8), byte(i)}), 80), Ready: true})
		}
		port.Endpoints, port.Internal, port.External = port.Cluster, port.Cluster, port.Cluster
		big.Ports = []config.ServicePort{port}
		n.proxy.Apply([]config.Service{big})
		const path = api.Prefix + "/services/default/big"
		var slow []*bufio.Reader
		for range 5 { // for 1.3 MB each
			c := ask(n, path, 1)
			Expect(c.SetReadDeadline(time.Now().Add(time.Minute))).To(Succeed())
			r := bufio.NewReader(c)
			Expect(r.Peek(1)).Error().NotTo(HaveOccurred()) // the body is being written
			slow = append(slow, r)
		}
		Expect(status(n, path)).To(Equal(200))
		Expect(status(n, api.Prefix+"/services")).To(Equal(200))
		whole := 0
		for _, r := range slow {
			res, err := http.ReadResponse(r, nil)
			Expect(err).NotTo(HaveOccurred())
			if _, err := io.Copy(io.Discard, res.Body); err == nil {
				whole++
			}
		}
		Expect(whole).To(BeNumerically("<=", 2))
	})
	It("do not keep others from the metrics", func() {
		n := newNode()
		for range 8 {
			ask(n, "/metrics", 40)
		}
		Consistently(status).WithArguments(n, "/metrics").WithTimeout(time.Second).Should(Equal(200))
	})
})
