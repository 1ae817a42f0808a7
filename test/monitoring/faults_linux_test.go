package monitoring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/onsi/gomega/gexec"
	"sigs.k8s.io/yaml"

	"github.com/usherproxy/usher/test/lab"
)

const (
	web      = "10.96.0.10:80"
	more     = "10.96.0.13:80"
	hung     = "10.96.0.14:80"
	resolver = "10.96.0.11:53"
	query    = "http://127.0.0.1:9090/api/v1/"
	patience = time.Minute // in addition to an alert's own wait
)

// scene is a node with an usher process that Prometheus monitors.
type scene struct {
	*lab.Lab
	dir, manifests, broken string // broken: while this file exists, installing rules fails
	usher                  *gexec.Session
	client                 *http.Client
	pod                    *lab.Dialer
	backends               [2]net.Listener
	clash                  string // the manifest of a Service that cannot be served
}

func (s *scene) write(name, text string) {
	GinkgoHelper()
	Expect(os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o755)).To(Succeed())
}

// start starts a command on the node. The caller must stop it.
func (s *scene) start(cmd *exec.Cmd) (session *gexec.Session) {
	GinkgoHelper()
	s.Node.Do(func() (err error) {
		session, err = gexec.Start(cmd, GinkgoWriter, GinkgoWriter)
		return err
	})
	return session
}

// listen starts backend i, which sends back what it receives.
func (s *scene) listen(i int) {
	GinkgoHelper()
	s.backends[i] = s.Pods.Listen(netip.AddrPortFrom(lab.Pod(i+1), 8080).String())
	lab.Serve(s.backends[i], func(c net.Conn) { _, _ = io.Copy(c, c) })
}

func newScene() *scene {
	GinkgoHelper()
	if _, err := exec.LookPath("prometheus"); err != nil {
		Skip("Prometheus is not installed (Debian's package: prometheus)")
	}
	s := &scene{Lab: lab.New(), dir: GinkgoT().TempDir()}
	s.manifests, s.broken, s.pod = filepath.Join(s.dir, "manifests"), filepath.Join(s.dir, "broken"), s.Pods.NewDialer(64)
	s.client = s.Node.NewDialer(4).Client()
	for i := range s.backends {
		s.listen(i)
	}
	lab.Echo(s.Pods.ListenUDP(netip.AddrPortFrom(lab.Pod(1), 5353).String()))
	return s
}

const service = `apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: shop}
spec: {clusterIP: %[2]s, ports: [{name: main, port: %[3]d, protocol: %[4]s}], externalIPs: [%[5]s]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s, namespace: shop, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: main, port: %[6]d, protocol: %[4]s}]
endpoints: [{addresses: [%[7]s]}, {addresses: [%[8]s]}]
`

// startUsher starts usher as deploy/ does, but with few descriptors, and with an iptables in its PATH that fails while
// the file broken exists.
func (s *scene) startUsher() {
	GinkgoHelper()
	program := filepath.Join(s.dir, "usher")
	out, err := exec.Command("go", "build", "-C", "../..", "-o", program, "./cmd/usher").CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
	Expect(os.Mkdir(s.manifests, 0o755)).To(Succeed())
	one, two := lab.Pod(1).String(), lab.Pod(2).String()
	s.write("manifests/web.yaml", fmt.Sprintf(service, "web", "10.96.0.10", 80, "TCP", "", 8080, one, two))
	s.write("manifests/dns.yaml", fmt.Sprintf(service, "dns", "10.96.0.11", 53, "UDP", "", 5353, one, one))
	s.clash = fmt.Sprintf(service, "clash", "10.96.0.12", 80, "TCP", "10.96.0.10", 8080, one, two)
	path := filepath.Join(s.dir, "bin")
	Expect(os.Mkdir(path, 0o755)).To(Succeed())
	for _, name := range []string{"iptables-restore", "ip6tables-restore", "iptables-nft-restore", "ip6tables-nft-restore", "iptables-legacy-restore", "ip6tables-legacy-restore"} {
		if real, err := exec.LookPath(name); err == nil {
			s.write("bin/"+name, fmt.Sprintf("#!/bin/sh\n[ ! -e %s ] || { echo 'iptables-restore: line 1 failed' >&2; exit 1; }\nexec %s \"$@\"\n", s.broken, real))
		}
	}
	cmd := exec.Command("prlimit", "--nofile=512:512", program, "run", "--keeper", "--manifests="+s.manifests, "--portal=iptables", "--portal-check-interval=1s",
		"--access-log="+filepath.Join(s.dir, "access.log"), "--log-format=text")
	cmd.Env = append(os.Environ(), "PATH="+path+":"+os.Getenv("PATH"))
	s.usher = s.start(cmd)
	DeferCleanup(func() {
		s.usher.Terminate()
		s.usher.Wait(time.Minute)
	})
	Eventually(s.usher.Err).WithTimeout(patience).Should(gbytes.Say("Serving"))
}

// child returns the PID of the keeper's usher process.
func (s *scene) child() int {
	GinkgoHelper()
	return lab.Child(s.usher.Command.Process.Pid)
}

// startPrometheus starts Prometheus with the hurried rules and waits until it has discovered usher.
func (s *scene) startPrometheus() {
	GinkgoHelper()
	rules, err := yaml.Marshal(alerts().hurried())
	Expect(err).NotTo(HaveOccurred())
	s.write("alerts.yaml", string(rules))
	s.write("prometheus.yaml", `global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [alerts.yaml]
scrape_configs: [{job_name: usher, static_configs: [{targets: ["127.0.0.1:10249"]}]}]
`)
	promtool("check", "config", filepath.Join(s.dir, "prometheus.yaml"))
	p := s.start(exec.Command("prometheus", "--config.file="+filepath.Join(s.dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(s.dir, "data"),
		"--web.listen-address=127.0.0.1:9090", "--log.level=warn"))
	DeferCleanup(func() { p.Kill().Wait(30 * time.Second) })
	Eventually(func() (float64, error) { return s.value("up") }).WithTimeout(patience).Should(Equal(1.0))
}

// series is a time series in a response of Prometheus.
type series struct {
	Metric map[string]string
	Value  []any   // time, value
	Values [][]any // a list of these
}

func (s *scene) ask(path string, parameters url.Values, into any) error {
	response, err := s.client.Get(query + path + "?" + parameters.Encode())
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s %s: %s", path, parameters, answer.Error)
	}
	return json.Unmarshal(answer.Data, into)
}

// value returns the current value of an expression.
func (s *scene) value(expr string) (float64, error) {
	var data struct{ Result []series }
	if err := s.ask("query", url.Values{"query": {expr}}, &data); err != nil {
		return 0, err
	}
	if len(data.Result) != 1 {
		return 0, fmt.Errorf("%s: %d results", expr, len(data.Result))
	}
	return strconv.ParseFloat(data.Result[0].Value[1].(string), 64)
}

// awaitValue is value with retries: in the second after a late scrape there is no value.
func (s *scene) awaitValue(expr string) (v float64) {
	GinkgoHelper()
	Eventually(func() (err error) {
		v, err = s.value(expr)
		return err
	}).WithTimeout(patience).Should(Succeed())
	return v
}

// history returns the values of an expression, one for each second since a time.
func (s *scene) history(expr string, since time.Time) ([]series, error) {
	var data struct{ Result []series }
	err := s.ask("query_range", url.Values{"query": {expr}, "step": {"1"},
		"start": {strconv.FormatInt(since.Unix(), 10)}, "end": {strconv.FormatInt(time.Now().Unix()+1, 10)}}, &data)
	return data.Result, err
}

// firing returns the names of the alerts that fire.
func (s *scene) firing() (names []string, err error) {
	var data struct {
		Alerts []struct {
			Labels map[string]string
			State  string
		}
	}
	err = s.ask("alerts", nil, &data)
	for _, a := range data.Alerts {
		if a.State == "firing" && !slices.Contains(names, a.Labels["alertname"]) {
			names = append(names, a.Labels["alertname"])
		}
	}
	return names, err
}

// firingOnBusyMachine returns a function like firing. It returns the previous result if Prometheus does not respond,
// and an error after five such requests in a row.
func (s *scene) firingOnBusyMachine() func() ([]string, error) {
	var last []string
	silent := 0
	return func() ([]string, error) {
		names, err := s.firing()
		if transport := (*url.Error)(nil); errors.As(err, &transport) && silent < 4 {
			silent++
			return last, nil
		}
		last, silent = names, 0
		return names, err
	}
}

// traffic starts clients, 10/s over TCP and 5/s over UDP, until the end of the spec.
func (s *scene) traffic() {
	var all sync.WaitGroup
	ctx, end := context.WithCancel(context.Background())
	DeferCleanup(func() {
		end()
		all.Wait()
	})
	every := func(d time.Duration, do func()) {
		all.Go(func() {
			ticker := time.NewTicker(d)
			defer ticker.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-ticker.C:
					all.Go(do)
				}
			}
		})
	}
	exchange := func(c net.Conn) {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(6 * time.Second))
		if _, err := c.Write([]byte("?")); err == nil {
			_, _ = c.Read(make([]byte, 1))
		}
	}
	every(100*time.Millisecond, func() {
		if c, err := s.pod.Dial("", web, 6*time.Second); err == nil { // some fail: the spec injects faults
			exchange(c)
		}
	})
	every(2*time.Second, func() {
		if c, err := s.pod.DialUDP("", resolver); err == nil {
			exchange(c)
		}
	})
}

// fault is an event that happens to usher, and the alerts that must report it.
type fault struct {
	what   string
	alerts []string
	inject func()
	heal   func()
}

func (s *scene) faults() []fault {
	nothing := func() {}
	var open []net.Conn
	var hangs net.Listener
	repairs := func() (float64, error) { return s.value("usher_portal_repairs_total") }
	log := filepath.Join(s.dir, "access.log")
	return []fault{
		{"an endpoint refuses", []string{"UsherEndpointsInQuarantine"}, func() { s.backends[1].Close() }, func() { s.listen(1) }},
		{"an endpoint hangs", []string{"UsherEndpointsUnresponsive"}, func() {
			hangs = s.Pods.Listen(netip.AddrPortFrom(lab.Pod(3), 8080).String()) // the kernel accepts for it
			s.write("manifests/hung.yaml", fmt.Sprintf(service, "hung", "10.96.0.14", 80, "TCP", "", 8080, lab.Pod(1), lab.Pod(3)))
			ask := func() error {
				c, err := s.pod.Dial("", hung, 3*time.Second)
				if err != nil {
					return err
				}
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(200 * time.Millisecond))
				_, err = c.Write([]byte("?"))
				_, _ = c.Read(make([]byte, 1))
				return err
			}
			Eventually(ask).WithTimeout(patience).Should(Succeed())
			for range 20 {
				Expect(ask()).To(Succeed())
			}
		}, func() {
			Expect(os.Remove(filepath.Join(s.manifests, "hung.yaml"))).To(Succeed())
			hangs.Close()
		}},
		{"all endpoints refuse", []string{"UsherConnectionsFail"}, func() { s.backends[0].Close(); s.backends[1].Close() }, func() { s.listen(0); s.listen(1) }},
		{"a Service has another Service's address", []string{"UsherServicesNotServed"}, func() { s.write("manifests/clash.yaml", s.clash) }, func() {
			Expect(os.Remove(filepath.Join(s.manifests, "clash.yaml"))).To(Succeed())
		}},
		{"rules are flushed repeatedly", []string{"UsherPortalIsBeingChanged"}, func() {
			for range 4 {
				before := s.awaitValue("usher_portal_repairs_total")
				s.Node.Output("sh", "-c", "iptables -t nat -F PREROUTING")
				Eventually(repairs).WithTimeout(patience).Should(BeNumerically(">", before))
			}
		}, nothing},
		{"the disk is full", []string{"UsherAccessLogLosesLines"}, func() {
			Expect(os.Rename(log, log+".1")).To(Succeed())
			Expect(os.Symlink("/dev/full", log+".full")).To(Succeed())
			Expect(os.Rename(log+".full", log)).To(Succeed()) // replaces a log that usher may have created by now
		}, func() { Expect(os.Remove(log)).To(Succeed()) }},
		{"the kernel rejects rules", []string{"UsherPortalFails", "UsherSyncIsLate"}, func() {
			s.write("broken", "")
			s.write("manifests/more.yaml", fmt.Sprintf(service, "more", "10.96.0.13", 80, "TCP", "", 8080, lab.Pod(1), lab.Pod(2)))
		}, func() { Expect(os.Remove(s.broken)).To(Succeed()) }},
		{"descriptors run out", []string{"UsherNearConnectionLimit"}, func() {
			limit := s.awaitValue("usher_connections_limit")
			Expect(limit).To(BeNumerically("<", 512))
			Eventually(func() error {
				c, err := s.pod.Dial("", more, 3*time.Second)
				if err == nil {
					c.Close()
				}
				return err
			}).WithTimeout(patience).Should(Succeed(), "the Service that was added while the kernel rejected rules")
			for i := range int(limit*0.95) + 1 { // to two ports, since near the limit no port may have more than half
				c, err := s.pod.Dial(lab.Pod(20+i%50).String(), []string{web, more}[i%2], 3*time.Second)
				Expect(err).NotTo(HaveOccurred())
				open = append(open, c)
			}
		}, func() {
			for _, c := range open {
				c.Close()
			}
		}},
		{"usher is killed, and its keeper restarts it", []string{"UsherEndsUnexpectedly"}, func() {
			Expect(syscall.Kill(s.child(), syscall.SIGKILL)).To(Succeed())
		}, nothing},
	}
}

var _ = Describe("Prometheus with usher's alert rules", func() {
	It("fires an alert for each fault, not before, and has data for each dashboard panel", func() {
		s := newScene()
		s.startUsher()
		s.traffic()
		s.startPrometheus()
		Eventually(s.firing).WithTimeout(patience).Should(BeEmpty())   // UsherDown may have fired
		began := time.Now().Truncate(time.Second).Add(2 * time.Second) // samples are per second, and this second began before the check above
		Consistently(s.firingOnBusyMachine()).WithTimeout(20*time.Second).WithPolling(time.Second).Should(BeEmpty(), "no fault has been injected yet")

		injected := map[string]time.Time{}
		happen := func(f fault) {
			GinkgoHelper()
			By(f.what)
			for _, name := range f.alerts {
				injected[name] = time.Now()
			}
			f.inject()
			Eventually(s.firing).WithTimeout(patience).WithPolling(500*time.Millisecond).Should(ContainElements(f.alerts), f.what)
			f.heal()
		}
		for _, f := range s.faults() {
			happen(f)
		}
		By("waiting until all alerts have stopped")
		Eventually(s.firing).WithTimeout(2*patience).WithPolling(time.Second).Should(
			Or(BeEmpty(), HaveEach(BeElementOf("UsherPortalIsBeingChanged", "UsherEndsUnexpectedly"))), "alerts that look back an hour, here a minute")

		By("checking the dashboard's data")
		s.expectData(began)

		happen(fault{"usher and its keeper have exited", []string{"UsherDown"}, func() {
			s.usher.Terminate()
			Eventually(s.usher).WithTimeout(patience).Should(gexec.Exit())
		}, func() {}})

		for _, name := range alerts().names() {
			if name == "UsherAPIServerFails" {
				continue // Services come from files here; testdata/alerts_test.yaml covers it
			}
			Expect(injected).To(HaveKey(name))
			fired, err := s.history(fmt.Sprintf(`ALERTS{alertstate="firing",alertname=%q}`, name), began)
			Expect(err).NotTo(HaveOccurred())
			Expect(fired).NotTo(BeEmpty(), name)
			for _, f := range fired {
				first := time.Unix(int64(f.Values[0][0].(float64)), 0)
				Expect(first).To(BeTemporally(">=", injected[name].Truncate(time.Second)), name)
				AddReportEntry(name, first.Sub(injected[name]).Round(time.Second).String())
			}
		}
	})
})

// expectData checks that all expressions of the dashboard have data since a time.
func (s *scene) expectData(since time.Time) {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(deployed, "dashboard.json"))
	Expect(err).NotTo(HaveOccurred())
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	Expect(json.Unmarshal(text, &dashboard)).To(Succeed())
	for _, p := range dashboard.Panels {
		for _, t := range p.Targets {
			expr := strings.NewReplacer("$instance", ".*", "$__rate_interval", "10s").Replace(t.Expr)
			found, err := s.history(expr, since)
			Expect(err).NotTo(HaveOccurred(), p.Title)
			Expect(found).NotTo(BeEmpty(), "%s: %s", p.Title, expr)
			Expect(slices.ContainsFunc(found, func(r series) bool {
				return slices.ContainsFunc(r.Values, func(v []any) bool { return v[1] != "NaN" })
			}) || strings.Contains(expr, "network_programming")).To(BeTrue(), "%s: %s is never a number", p.Title, expr) // only an API server's objects have this metric
		}
	}
	nodes, err := s.history("usher_build_info", since) // the source of the dashboard's list of nodes
	Expect(err).NotTo(HaveOccurred())
	Expect(nodes).To(ContainElement(HaveField("Metric", HaveKeyWithValue("instance", "127.0.0.1:10249"))))
}
