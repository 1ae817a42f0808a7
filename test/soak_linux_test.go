package test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/test/lab"
)

// The soak lasts for USHER_SOAK, a duration, and does what USHER_SOAK_SEED, a number, says.
// make soak sets both.
const (
	soakTime = time.Minute
	soakSeed = 1
)

// soakMemory is how much more memory than after the first seconds usher may have.
const soakMemory = 64 << 20

var _ = Describe("a soak: mixed traffic, with all faults that there are", func() {
	It("loses nothing but what was killed, and leaves nothing behind", func() {
		d, seed := soakTime, uint64(soakSeed)
		var err error
		if text := os.Getenv("USHER_SOAK"); text != "" {
			d, err = time.ParseDuration(text)
			Expect(err).NotTo(HaveOccurred(), "USHER_SOAK")
		}
		if text := os.Getenv("USHER_SOAK_SEED"); text != "" {
			seed, err = strconv.ParseUint(text, 10, 64)
			Expect(err).NotTo(HaveOccurred(), "USHER_SOAK_SEED")
		}
		lab.Long()
		page := &soakPage{seed: seed, time: d}
		DeferCleanup(func() { page.write(filepath.Join(root(), ".cache", "soak.md")) })
		// The race detector has memory of its own for all that a program ever touched.
		plain, err := gexec.Build("github.com/usherproxy/usher/cmd/usher")
		Expect(err).NotTo(HaveOccurred())
		raced := usherBinary
		DeferCleanup(func() { usherBinary = raced })
		portals := []string{"iptables", "nftables", "address"}
		for n, portal := range portals {
			if portal == "iptables" {
				missing("iptables")
			}
			if usherBinary = raced; n == len(portals)-1 {
				usherBinary = plain
			}
			page.run(newSoak(portal, rand.New(rand.NewPCG(seed, uint64(n)))), d/time.Duration(len(portals)), usherBinary == plain)
		}
	})
})

// soak is the part of one portal.
type soak struct {
	portal  string
	rand    *rand.Rand // what is done next, and to whom
	lab     *lab.Lab
	pod     *lab.Dialer
	node    *lab.Dialer
	dir     string
	kept    *kept
	traffic soakTraffic
	incidents
	families [2]*soakFamily
	guest    service         // one that comes and goes
	leaving  []*soakEndpoint // no client is led to them any more
	events   []soakEvent
	checked  []string // what was found at the end
}

// soakFamily are the Services of an IP family, and their endpoints.
type soakFamily struct {
	web, dns  service
	endpoints []*soakEndpoint // all but the last are the Services'
}

type soakEvent struct {
	at, until time.Time
	what      string
}

func newSoak(portal string, r *rand.Rand) *soak {
	GinkgoHelper()
	s := &soak{portal: portal, rand: r, lab: lab.New(), dir: manifestsDir()}
	s.pod, s.node = s.lab.Pods.NewDialer(2*soakers), s.lab.Node.NewDialer(4)
	s.families = [...]*soakFamily{
		{web: service{name: "web4", clusterIP: "10.96.0.10", port: 80}, dns: service{name: "dns4", clusterIP: "10.96.0.53", port: 53, protocol: "UDP"}},
		{web: service{name: "web6", clusterIP: "fd00:10:96::10", port: 80}, dns: service{name: "dns6", clusterIP: "fd00:10:96::53", port: 53, protocol: "UDP"}},
	}
	t := &s.traffic
	t.dialer, t.seed, t.incidents = s.pod, r.Uint64(), &s.incidents
	for n, f := range s.families {
		for i := range 4 {
			at := []netip.Addr{lab.Pod(i + 1), lab.Pod6(i + 1)}[n]
			f.endpoints = append(f.endpoints, &soakEndpoint{ns: s.lab.Pods, at: at, broken: map[uint64]bool{}, open: map[*net.TCPConn]uint64{}})
			if i < 3 {
				f.endpoints[i].listen()
			}
		}
		f.write(s.dir)
		t.tcp, t.udp = append(t.tcp, f.web.vip()), append(t.udp, f.dns.vip())
		t.endpoints = append(t.endpoints, f.endpoints...)
	}
	s.guest = service{name: "guest", clusterIP: "10.96.0.20", port: 80}
	// What is remembered of flows that have ended, or went astray without rules, shall be gone soon.
	for name, value := range map[string]int{"tcp_loose": 0, "tcp_timeout_time_wait": 1, "tcp_timeout_close": 1, "tcp_timeout_close_wait": 5, "tcp_timeout_last_ack": 5,
		"tcp_timeout_fin_wait": 5, "tcp_timeout_syn_sent": 5, "tcp_timeout_established": 15, "tcp_timeout_unacknowledged": 15, "tcp_timeout_max_retrans": 15, "tcp_timeout_syn_recv": 5, "udp_timeout": 5, "udp_timeout_stream": 5} {
		s.lab.Node.Output("sysctl", "-eqw", fmt.Sprintf("net.netfilter.nf_conntrack_%s=%d", name, value))
	}
	return s
}

// write puts the manifests of the Services into dir.
func (f *soakFamily) write(dir string) {
	f.web.endpoints, f.dns.endpoints = nil, nil
	for _, e := range f.endpoints[:len(f.endpoints)-1] {
		f.web.endpoints, f.dns.endpoints = append(f.web.endpoints, e.tcp()), append(f.dns.endpoints, e.udp())
	}
	f.web.write(dir)
	f.dns.write(dir)
}

func (s *soak) startKept(more ...string) {
	GinkgoHelper()
	s.kept = startKept(s.lab.Node, s.dir, append([]string{"--portal=" + s.portal, "--udp-idle-timeout=2s"}, more...)...)
}

// run makes traffic and events for some time, and then checks that all is as it was.
func (s *soak) run(d time.Duration, memory bool) {
	GinkgoHelper()
	before, flows := state(s.lab.Node), s.flows()
	s.startKept()
	end := s.traffic.start()
	DeferCleanup(func() { end() })
	warm := time.After(2 * time.Second) // what is opened once and kept is there after this
	<-warm
	end()
	s.settle()
	files, goroutines := descriptors(s.kept.child()), metric(s.node, "go_goroutines")

	end = s.traffic.start()
	stopWatching := func() {}
	var top atomic.Int64
	first := lab.Resident(s.kept.child())
	s.serving.Store(int64(s.kept.child()))
	if memory {
		stopWatching = s.watchMemory(&top)
		DeferCleanup(stopWatching)
	}
	s.disturb(time.Now().Add(d))
	end()
	stopWatching()
	s.settle()
	s.check("connections: %.0f accepted, %.0f ended, %.0f open", metric(s.node, "usher_connections_accepted_total"), s.sum("usher_connections_closed_total"), metric(s.node, "usher_connections_open"))
	Expect(metric(s.node, "usher_connections_accepted_total")).To(Equal(s.sum("usher_connections_closed_total") + metric(s.node, "usher_connections_open")))
	s.check("UDP sessions: %.0f begun, %.0f ended, %.0f open", metric(s.node, "usher_udp_sessions_total"), s.sum("usher_udp_sessions_ended_total"), metric(s.node, "usher_udp_sessions_open"))
	Expect(metric(s.node, "usher_udp_sessions_total")).To(Equal(s.sum("usher_udp_sessions_ended_total") + metric(s.node, "usher_udp_sessions_open")))
	Eventually(func() int { return descriptors(s.kept.child()) }).WithTimeout(20 * time.Second).Should(BeNumerically("<=", files))
	Eventually(func() float64 { return metric(s.node, "go_goroutines") }).WithTimeout(20 * time.Second).Should(BeNumerically("<=", goroutines+1))
	s.check("descriptors: %d at first, %d at the end; goroutines: %.0f, %.0f", files, descriptors(s.kept.child()), goroutines, metric(s.node, "go_goroutines"))
	if memory {
		s.check("memory: %.1f MB at first, %.1f MB at most", megabytes(first), megabytes(top.Load()))
		Expect(top.Load()).To(BeNumerically("<=", first+soakMemory))
	}
	s.kept.Interrupt()
	Eventually(s.kept).WithTimeout(20 * time.Second).Should(gexec.Exit(0))
	Expect(differences(before, state(s.lab.Node))).To(BeEmpty(), "rules, routes and addresses")
	Eventually(s.flows).WithTimeout(30 * time.Second).Should(BeNumerically("<=", flows))
	s.check("rules, routes, addresses and conntrack entries: as before")
	for kind := range s.traffic.kinds {
		Expect(s.traffic.kinds[kind].Load()).To(BeNumerically(">", 10), "connections of kind %d", kind)
	}
	Expect(s.traffic.failures).To(BeEmpty())
}

func (s *soak) check(format string, args ...any) {
	s.checked = append(s.checked, fmt.Sprintf(format, args...))
}

// differences returns the lines that only one of two texts has.
func differences(before, after string) (all []string) {
	for sign, texts := range map[string][2]string{"-": {before, after}, "+": {after, before}} {
		others := slices.Collect(strings.Lines(texts[1]))
		for line := range strings.Lines(texts[0]) {
			if !slices.Contains(others, line) {
				all = append(all, sign+line)
			}
		}
	}
	return all
}

// settle waits until nothing is open.
func (s *soak) settle() {
	GinkgoHelper()
	for _, open := range []string{"usher_connections_open", "usher_udp_sessions_open"} {
		Eventually(func() float64 { return metric(s.node, open) }).WithTimeout(20*time.Second).Should(BeZero(), open)
	}
}

// sum returns the sum of a metric that has labels.
func (s *soak) sum(name string) (sum float64) {
	GinkgoHelper()
	for line := range strings.Lines(told(s.node, "/metrics")) {
		if strings.HasPrefix(line, name+"{") {
			value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
			Expect(err).NotTo(HaveOccurred())
			sum += value
		}
	}
	return sum
}

// flows returns how many entries conntrack has on the node. (Its own count holds some that are
// over; to read the list takes those away.)
func (s *soak) flows() int {
	GinkgoHelper()
	return strings.Count(s.lab.Node.Output("cat", "/proc/net/nf_conntrack"), "\n")
}

// watchMemory notes the most memory that an usher has had, four times a second.
func (s *soak) watchMemory(top *atomic.Int64) (stop func()) {
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(250 * time.Millisecond):
			}
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.serving.Load()))
			if fields := strings.Fields(string(status)); err == nil && len(fields) > 1 { // or it was killed
				pages, _ := strconv.ParseInt(fields[1], 10, 64)
				top.Store(max(top.Load(), pages*int64(os.Getpagesize())))
			}
		}
	})
	return sync.OnceFunc(func() { close(over); watching.Wait() })
}

// soakPage is what a run of the soak says of itself.
type soakPage struct {
	seed  uint64
	time  time.Duration
	parts []*soak
}

func (p *soakPage) run(s *soak, d time.Duration, memory bool) {
	GinkgoHelper()
	p.parts = append(p.parts, s)
	s.run(d, memory)
}

// write writes the page, and says where it is.
func (p *soakPage) write(path string) {
	var b strings.Builder
	fmt.Fprintf(&b, "# Soak of %s, seed %d\n\n", p.time, p.seed)
	report, result := CurrentSpecReport(), "nothing else was lost"
	if report.Failed() {
		result = "RED: see What it found"
	}
	fmt.Fprintf(&b, "%s. To make it again: `make soak DURATION=%s SEED=%d`\n", result, p.time, p.seed)
	fmt.Fprint(&b, `
The same seed makes the same events in the same order, with the same pauses, and the same traffic
of each client. How many events there is time for, and which connection meets which event, differs.
`)
	fmt.Fprint(&b, "\n## What was lost\n\n| portal | connections | UDP exchanges | asked again | MB | lost |\n|---|---|---|---|---|---|\n")
	for _, s := range p.parts {
		t := &s.traffic
		t.mu.Lock()
		lost := []string{}
		for _, why := range slices.Sorted(maps.Keys(t.lost)) {
			lost = append(lost, fmt.Sprintf("%d %s", t.lost[why], why))
		}
		t.mu.Unlock()
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %s |\n", s.portal, t.total.Load(), t.exchanges.Load(), t.repeated.Load(), t.bytes.Load()>>20, strings.Join(lost, "; "))
	}
	fmt.Fprint(&b, "\nEvery byte of every connection and datagram was compared.\n\n## What it found\n\n")
	if report.Failed() {
		fmt.Fprintf(&b, "```\n%s\n```\n", report.FailureMessage())
	}
	for _, s := range p.parts {
		for _, c := range s.checked {
			fmt.Fprintf(&b, "- %s: %s\n", s.portal, c)
		}
		s.traffic.mu.Lock()
		for _, failure := range s.traffic.failures {
			fmt.Fprintf(&b, "- %s: LOST %s\n", s.portal, failure)
		}
		s.traffic.mu.Unlock()
	}
	fmt.Fprint(&b, "\n## What was done\n\n| portal | from | until | what |\n|---|---|---|---|\n")
	for _, s := range p.parts {
		for _, e := range s.events {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", s.portal, e.at.Format(clock), e.until.Format(clock), e.what)
		}
	}
	fmt.Fprint(&b, `
## What was not done

- SCTP: most kernels that run this have none. test/vm has checks in a kernel that has.
- Bad links (netem): the same.
- A cgroup that limits memory: it would have to be made beside those of whoever runs this. What
  usher holds is measured instead, four times a second, in the part of the address portal, whose usher is built
  without the race detector.
- Steps of the clock: no namespace has a clock of its own that can be set (time_namespaces(7)), and
  the machine's is left alone.
`)
	Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	Expect(os.WriteFile(path, []byte(b.String()), 0o644)).To(Succeed())
	AddReportEntry("soak", path)
	fmt.Fprintln(os.Stderr, "soak: "+path)
}
