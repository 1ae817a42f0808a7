package test

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/test/lab"
)

// serveHTTP starts a web server in ns that answers with its name.
func serveHTTP(ns *lab.Namespace, address, name string) netip.AddrPort {
	GinkgoHelper()
	l := ns.Listen(address)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) })}
	go func() { _ = server.Serve(l) }()
	DeferCleanup(server.Close)
	return netip.MustParseAddrPort(address)
}

var _ = Describe("a user without any privilege", func() {
	var (
		l     *lab.Lab
		usher string
	)
	// curl runs a command line of curl's after what is before it.
	curl := func(before, args string) string {
		GinkgoHelper()
		cmd := asNobody("sh", "-c", before+"\ncurl -sS --fail --max-time 10 "+args)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		out := launch(l.Node, cmd, "")
		Eventually(out).WithTimeout(20 * time.Second).Should(gexec.Exit())
		return string(out.Out.Contents()) + string(out.Err.Contents())
	}
	BeforeEach(func() {
		missing("curl")
		l = lab.New()
		l.Node.Output("sysctl", "-q", "net.ipv4.ip_unprivileged_port_start=1024")
		usher = usherForNobody()
		dir, err := os.MkdirTemp("", "usher-manifests-")
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(os.RemoveAll, dir)
		Expect(os.Chmod(dir, 0o755)).To(Succeed())
		web := service{name: "web", clusterIP: "10.96.0.10", port: 80, endpoints: []netip.AddrPort{serveHTTP(l.Node, "127.0.0.1:8081", "the Service")}}
		web.write(dir)
		serveHTTP(l.Node, "127.0.0.1:3000", "another server")
		u := launch(l.Node, asNobody(usher, "run", "--manifests", dir, "--portal=none", "--socks=:1080", "--trace", "--log-format=text"), dir)
		Eventually(u.Err).WithTimeout(20 * time.Second).Should(gbytes.Say("Serving"))
	})

	It("reaches a Service on a loopback address of its own, the same each time", func() {
		Expect(curl("", "http://127.79.36.49:8080/")).To(Equal("the Service"))
	})

	It("reaches it by name through SOCKS, and everything else too", func() {
		Expect(curl("", "-x socks5h://127.0.0.1:1080 http://web.default/")).To(Equal("the Service"))
		environment := fmt.Sprintf(`eval "$(%s proxy-env)"`, usher)
		Expect(curl(environment, "http://web/")).To(Equal("the Service"))
		Expect(curl(environment, "http://web.default.svc.cluster.local/")).To(Equal("the Service"))
		Expect(curl(environment, "http://10.96.0.10/")).To(Equal("the Service"))
		Expect(curl(environment, "http://127.0.0.1:3000/")).To(Equal("another server"))
		Expect(curl(environment, "--noproxy '' http://127.0.0.1:3000/")).To(Equal("another server"))
		Expect(curl(environment, "http://nobody.default.svc/")).To(ContainSubstring("curl: (97)"), "host unreachable")
	})
})
