package test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/test/lab"
)

// serveHTTP starts a web server in ns that responds with its name.
func serveHTTP(ns *lab.Namespace, address, name string) netip.AddrPort {
	GinkgoHelper()
	named(ns, address, name).Start()
	return netip.MustParseAddrPort(address)
}

// named returns an unstarted web server in ns that responds with its name. To Git it presents name as a branch.
func named(ns *lab.Namespace, address, name string) *httptest.Server {
	GinkgoHelper()
	server := &httptest.Server{Listener: ns.Listen(address), Config: &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/info/refs") {
				fmt.Fprintf(w, "%040d\trefs/heads/%s\n", 1, strings.ReplaceAll(name, " ", "-"))
				return
			}
			fmt.Fprint(w, name)
		})}}
	DeferCleanup(server.Close)
	return server
}

var _ = Describe("an unprivileged user", Ordered, ContinueOnFailure, func() {
	var (
		l     *lab.Lab
		usher string
	)
	// shell returns the output of a script.
	shell := func(script string) string {
		GinkgoHelper()
		cmd := asNobody("sh", "-c", script)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		out := launch(l.Node, cmd, "")
		Eventually(out).WithTimeout(30 * time.Second).Should(gexec.Exit())
		return string(out.Out.Contents()) + string(out.Err.Contents())
	}
	// curl runs curl with args, after the commands in before.
	curl := func(before, args string) string {
		GinkgoHelper()
		return shell(before + "\ncurl -sS --fail --max-time 10 " + args)
	}
	BeforeAll(func() {
		missing("curl")
		l = lab.New()
		l.Node.Output("sysctl", "-q", "net.ipv4.ip_unprivileged_port_start=1024")
		usher = kubectlUsherForNobody()
		dir, err := os.MkdirTemp("", "usher-manifests-")
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(os.RemoveAll, dir)
		Expect(os.Chmod(dir, 0o755)).To(Succeed())
		web := service{name: "web", clusterIP: "10.96.0.10", port: 80, endpoints: []netip.AddrPort{serveHTTP(l.Node, "127.0.0.1:8081", "the Service")}}
		web.write(dir)
		six := service{name: "six", clusterIP: "fd00:96::10", port: 80, spec: "  ipFamilies: [IPv6]\n", endpoints: []netip.AddrPort{serveHTTP(l.Node, "[::1]:8081", "the Service by IPv6")}}
		six.write(dir)
		named(l.Node, "127.0.0.1:8443", "the Service by TLS").StartTLS()
		secure := service{name: "secure", clusterIP: "10.96.0.11", port: 443, endpoints: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8443")}}
		secure.write(dir)
		serveHTTP(l.Node, "127.0.0.1:3000", "another server")
		u := launch(l.Node, asNobody(usher, "connect", "--manifests", dir, "--socks=:1080", "--trace", "--log-format=text"), dir)
		Eventually(u.Err).WithTimeout(time.Minute).Should(gbytes.Say("Serving"))
	})

	It("reaches a Service on its fixed loopback address", func() {
		Expect(curl("", "http://127.79.36.49:8080/")).To(Equal("the Service"))
	})

	It("reaches Services by name, and other servers, through the SOCKS and HTTP proxy", func() {
		Expect(curl("", "-x socks5h://127.0.0.1:1080 http://web.default/")).To(Equal("the Service"))
		Expect(curl("", "-p -x http://127.0.0.1:1080 http://web.default/")).To(Equal("the Service"), "through a tunnel")
		environment := fmt.Sprintf(`eval "$(%s proxy-env)"`, usher)
		Expect(curl(environment, "http://web/")).To(Equal("the Service"))
		Expect(curl(environment, "http://web.default.svc.cluster.local/")).To(Equal("the Service"))
		Expect(curl(environment, "http://10.96.0.10/")).To(Equal("the Service"))
		Expect(curl(environment, "http://127.0.0.1:3000/")).To(Equal("another server"))
		Expect(curl(environment, "--noproxy '' http://127.0.0.1:3000/")).To(Equal("another server"))
		Expect(curl(environment, "http://nobody.default.svc/")).To(ContainSubstring("error: 502"))
		Expect(curl("", "-x socks5h://127.0.0.1:1080 http://nobody.default.svc/")).To(ContainSubstring("curl: (97)"), "host unreachable")
	})

	DescribeTable("reaches Services by programs that use the environment of kubectl usher proxy-env", func(program, present, command string) {
		if shell("command -v "+program+" >/dev/null && "+present+" && echo yes") != "yes\n" {
			Skip(program + " is not installed or too old")
		}
		environment := shell(usher + " proxy-env")
		for url, answer := range map[string]string{
			"http://web/":                            "the Service",
			"http://web.default.svc.cluster.local/x": "the Service",
			"http://10.96.0.10/":                     "the Service",
			"http://six.default.svc/":                "the Service by IPv6",
			"http://[fd00:96::10]/":                  "the Service by IPv6",
			"https://secure.default/":                "the Service by TLS",
		} {
			Expect(shell(fmt.Sprintf("%s\nurl='%s'\n%s", environment, url, command))).To(Equal(answer), url)
		}
	},
		Entry(nil, "curl", "true", `curl -sSgk --fail --max-time 10 "$url"`),
		Entry(nil, "wget", "true", `wget -q -O - --no-check-certificate --timeout=10 --tries=1 "$url"`),
		Entry("Python's urllib", "/usr/bin/python3", "true", `/usr/bin/python3 -c '
import ssl, sys, urllib.request
print(end=urllib.request.urlopen(sys.argv[1], timeout=10, context=ssl._create_unverified_context()).read().decode())' "$url"`),
		Entry("Python's requests", "/usr/bin/python3", "/usr/bin/python3 -c 'import requests' 2>/dev/null", `/usr/bin/python3 -W ignore -c '
import requests, sys
print(end=requests.get(sys.argv[1], timeout=10, verify=False).text)' "$url"`),
		Entry("Node.js", "node", `node -e 'process.exit(parseInt(process.versions.node) < 24 ? 1 : 0)'`, `NODE_NO_WARNINGS=1 NODE_TLS_REJECT_UNAUTHORIZED=0 node -e '
fetch(process.argv[1]).then(r => r.text()).then(t => process.stdout.write(t))' "$url"`),
		Entry(nil, "git", "true", `printf %s "$(git -c http.sslVerify=false ls-remote "$url/web.git" | sed 's|.*refs/heads/||; s|-| |g')"`),
	)
})
