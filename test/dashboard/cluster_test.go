package dashboard

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
)

// apart starts 'usher run' on manifests, as run does, in a dedicated network namespace. Endpoints on this host are
// unreachable from there; the returned usher's url still works here.
func apart(manifests ...string) *usher {
	GinkgoHelper()
	unshare := []string{"unshare", "--net"}
	if os.Getuid() != 0 {
		unshare = append(unshare, "--map-root-user")
	}
	inside := append(unshare, "--", "sh", "-c", `ip link set lo up && exec "$0" "$@"`)
	if said, err := exec.Command(inside[0], append(inside[1:], "true")...).CombinedOutput(); err != nil {
		Skip("cannot create a network namespace: " + string(said))
	}
	u := prepare(manifests...)
	u.inside = inside
	u.start()
	relay, err := net.Listen("tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(relay.Close)
	at := strings.TrimSuffix(strings.TrimPrefix(u.url, "http://"), "/")
	u.url = "http://" + relay.Addr().String() + "/"
	go func() {
		for {
			conn, err := relay.Accept()
			if err != nil {
				return // the test is over
			}
			go func() {
				defer conn.Close()
				_ = u.enter(at, conn, conn) // until a side closes
			}()
		}
	}()
	return u
}

// enter connects to an address in usher's namespace, and copies until that side closes.
func (u *usher) enter(address string, in io.Reader, out io.Writer) error {
	host, port, _ := net.SplitHostPort(address)
	enter := []string{"--net", "--target", strconv.Itoa(u.Command.Process.Pid)}
	if os.Getuid() != 0 {
		enter = append(enter, "--user", "--preserve-credentials")
	}
	cmd := exec.Command("nsenter", append(enter, "--", "bash", "-c", fmt.Sprintf(`exec 3<>/dev/tcp/%s/%s; cat <&0 >&3 & cat <&3; kill $!`, host, port))...)
	cmd.Stdout, cmd.WaitDelay = out, time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(stdin, in) // a side has closed
		stdin.Close()
	}()
	return cmd.Run()
}

// clients makes connections to a Service one by one, and ignores their results.
func (u *usher) clients(service string, number int) {
	GinkgoHelper()
	var answer struct{ Ports []struct{ Listener string } }
	u.ask("services/default/"+service, &answer)
	at := answer.Ports[0].Listener
	for range number {
		if u.inside != nil {
			_ = u.enter(at, strings.NewReader(""), io.Discard) // no endpoint answers there
			continue
		}
		conn, err := net.DialTimeout("tcp", at, 5*time.Second)
		Expect(err).NotTo(HaveOccurred())
		Expect(conn.SetDeadline(time.Now().Add(10 * time.Second))).To(Succeed())
		_, _ = io.ReadAll(conn)
		conn.Close()
	}
}

// dashboardOf starts 'kubectl usher dashboard' for usher instances by node name, and returns its address.
func dashboardOf(ushers map[string]string) string {
	GinkgoHelper()
	args := []string{"dashboard", "--address", "127.0.0.1:0"}
	for node, url := range ushers {
		args = append(args, "--usher", node+"="+strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/"))
	}
	session, err := gexec.Start(exec.Command(filepath.Join(filepath.Dir(usherBinary), "kubectl-usher"), args...), GinkgoWriter, GinkgoWriter)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() {
		Expect(session.Interrupt().Wait(20 * time.Second).ExitCode()).To(BeZero())
		Expect(string(session.Err.Contents())).To(BeEmpty())
	})
	Eventually(session.Out).WithTimeout(60 * time.Second).Should(gbytes.Say(`Stop it with Ctrl-C`))
	url, _, _ := strings.Cut(strings.TrimPrefix(string(session.Out.Contents()), "Open "), " ")
	return url
}

var _ = Describe("the cluster page", func() {
	dead := func() []string { return []string{refusing(), answering(), answering()} }

	It("distinguishes a dead Pod from a node without connectivity, and names unresponsive nodes", func() {
		manifests := []string{service("web", "10.96.0.10", dead()...), service("cart", "10.96.0.11", answering()), service("idle", "10.96.0.12", answering(), answering())}
		a, b, c := run(manifests...), run(manifests...), apart(manifests...)
		url := dashboardOf(map[string]string{"node-a": a.url, "node-b": b.url, "node-c": c.url, "node-d": "http://" + refusing() + "/"})
		for _, u := range []*usher{a, b} {
			u.clients("web", 30)
			u.clients("cart", 3)
		}
		c.clients("web", 4)

		p := open(url)
		eventually(func() []string { return p.texts(".over-nodes tbody th") }).Should(Equal([]string{"default/web", "default/cart", "default/idle"}), "the worst first")
		eventually(func(g Gomega) { // node-c may answer late
			g.Expect(p.texts(".over-nodes tbody td.nodes")).To(HaveExactElements("1 of 3", Not(BeNil()), Not(BeNil())), "down on node-c, and degraded elsewhere")
			g.Expect(p.text("main > .bad")).To(Equal("No usher instance responds on the node node-d (connection refused). It is not included here."))
			g.Expect(p.texts(".of-nodes tbody th")).To(Equal([]string{"node-d", "node-a", "node-b", "node-c"}))
		}).Should(Succeed())

		p.press("/")
		p.press("idle")
		eventually(func() []string { return p.texts(".over-nodes tbody th") }).Should(Equal([]string{"default/idle"}))

		p = open(url + "#/service/default/web")
		eventually(func(g Gomega) { // as above
			g.Expect(p.texts(".findings li.bad")).To(ConsistOf(
				HavePrefix("↔The cause is the Pod web-0 ("), "↕The cause is node node-c: all 3 endpoints fail from there, and connections from other nodes succeed."))
			g.Expect(p.count(".matrix tr.fault")).To(Equal(1))
			g.Expect(p.text(".matrix tr.fault th > :first-child, .matrix tr.fault th")).To(HavePrefix("web-0"))
			g.Expect(p.text(".matrix thead th.fault")).To(HavePrefix("node-c"))
			g.Expect(p.texts(".matrix tbody tr:not(.fault) td.good")).To(HaveLen(4))
			g.Expect(p.text(".matrix tbody tr:not(.fault) td.good")).To(MatchRegexp(`^✓ 0 of \d+ · [\d.]+ ms$`))
			g.Expect(p.texts(".matrix thead th small")).To(ContainElement("✗ no response"))
		}).Should(Succeed())
		p.shoot("cluster")

		p = open(url + "#/service/default/idle")
		eventually(func() string { return p.text(".findings") }).Should(HavePrefix("?There were not enough connections"))
	})

	It("links to each node's page, and rejects invalid and cross-site requests", func() {
		d := demo()
		url := dashboardOf(map[string]string{"laptop": d.url, "other": "http://" + refusing() + "/"})
		p := open(url)
		eventually(func() []string { return p.texts(".of-nodes tbody th") }).Should(Equal([]string{"other", "laptop"}))
		p.clickOnce(".of-nodes a[href='nodes/laptop/']")
		eventually(func() string { return p.text("#live") }).Should(Equal("live"))
		eventually(func() []string { return p.texts(".services tbody th") }).Should(ContainElement("default/web"))
		Expect(p.text(".of-node")).To(Equal("laptop"))
		p.shoot("cluster-node")
		p.clickOnce(".demo-list select")
		eval[bool](p, `(() => { const s = document.querySelector('.demo-list select'); s.value = [...s.options].at(-1).value; s.dispatchEvent(new Event('change')); return true; })()`)
		eventually(func() int { return p.count(".demo-list small.bad") }).Should(BeNumerically(">", 0))
		p.clickOnce("nav a[href='../../']")
		eventually(func() string { return p.text("h1") }).Should(Equal("Cluster"))

		answer := func(method, path string, header ...string) (int, string) {
			GinkgoHelper()
			req, err := http.NewRequest(method, url+path, strings.NewReader("{}"))
			Expect(err).NotTo(HaveOccurred())
			for i := 0; i < len(header); i += 2 {
				req.Header.Set(header[i], header[i+1])
				if header[i] == "Host" {
					req.Host = header[i+1]
				}
			}
			res, err := http.DefaultClient.Do(req)
			Expect(err).NotTo(HaveOccurred())
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			Expect(err).NotTo(HaveOccurred())
			return res.StatusCode, string(body)
		}
		for _, refused := range []struct {
			code         int
			method, path string
			header       []string
		}{
			{421, "GET", "api/v1/cluster/nodes", []string{"Host", "evil.example"}},
			{403, "GET", "api/v1/cluster/nodes", []string{"Sec-Fetch-Site", "cross-site"}},
			{403, "POST", "nodes/laptop/demo/repair", nil}, // without the header that only the page sends
			{405, "POST", "nodes/laptop/api/v1/status", nil},
			{404, "GET", "nodes/laptop/metrics", nil},
			{404, "GET", "nodes/nobody/api/v1/status", nil},
			{400, "GET", "api/v1/cluster/services?x=1", nil},
			{404, "GET", "api/v1/cluster/services/default/none", nil},
			{502, "GET", "nodes/other/api/v1/status", nil},
		} {
			code, body := answer(refused.method, refused.path, refused.header...)
			Expect(code).To(Equal(refused.code), "%s %s: %s", refused.method, refused.path, body)
		}
		Expect(header(url+"nodes/laptop/api/v1/status", "Content-Security-Policy")).To(Equal("default-src 'none'; frame-ancestors 'none'"))
	})

	It("reports that no usher instance responds", func() {
		p := open(dashboardOf(map[string]string{"a": "http://" + refusing() + "/"}))
		p.downtime = true // the browser logs a failed request, too
		eventually(func() []string { return p.texts("main .bad, main .empty p") }).Should(ContainElements("No usher instance responds on the node a (connection refused). It is not included here.", "No usher instance responds."))
		Expect(p.text("#live")).To(Equal("live"))
	})

	It("truncates no number next to long names", func() {
		manifests := []string{service(long(0), "10.96.0.10", dead()...)}
		for i := 1; i < 9; i++ {
			manifests = append(manifests, service(long(i), fmt.Sprintf("10.96.0.%d", 10+i), answering()))
		}
		a, b, c := run(manifests...), run(manifests...), apart(manifests...)
		ushers := map[string]string{}
		for i, at := range []string{a.url, b.url, c.url, "http://" + refusing() + "/"} {
			ushers[fmt.Sprintf("ip-10-32-%d-101.eu-central-%d.compute.internal.%s", i, i, long(i))] = at
		}
		a.clients(long(0), 30)
		b.clients(long(0), 30)
		c.clients(long(0), 2)
		url := dashboardOf(ushers)
		for _, width := range []int64{390, 1280, 1920} {
			for _, colours := range []string{"light", "dark"} {
				for i, view := range []string{"#/", "#/service/default/" + long(0)} {
					p := open(url+view, size{width, 1000}, preferences{"prefers-color-scheme": colours}, busy)
					eventually(func() []string {
						if p.text("#live") != "live" {
							return []string{"not there yet"}
						}
						return eval[[]string](p, cut)
					}).Should(BeEmpty(), "%s at %d", view, width)
					p.shoot("cluster-%d-%s-%d", width, colours, i)
					p.close()
				}
			}
		}
	})
})
