package test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/test/lab"
)

// The soak runs for the duration USHER_SOAK, with the events and traffic of the seed USHER_SOAK_SEED. make soak sets
// both.
const (
	soakTime = time.Minute
	soakSeed = 1
)

// soakMemory is the number of bytes that usher and its keeper may use above their use after the first seconds.
const soakMemory = 64 << 20

var _ = Describe("a soak: mixed traffic with all kinds of faults,", serial, Ordered, ContinueOnFailure, func() {
	page := &soakPage{time: soakTime, seed: soakSeed}
	var raced, plain string
	var err error
	BeforeAll(func() {
		lab.Long()
		if text := os.Getenv("USHER_SOAK"); text != "" {
			page.time, err = time.ParseDuration(text)
			Expect(err).NotTo(HaveOccurred(), "USHER_SOAK")
		}
		if text := os.Getenv("USHER_SOAK_SEED"); text != "" {
			page.seed, err = strconv.ParseUint(text, 10, 64)
			Expect(err).NotTo(HaveOccurred(), "USHER_SOAK_SEED")
		}
		raced = usherBinary
		plain, err = releasedUsher()
		Expect(err).NotTo(HaveOccurred())
		fmt.Fprintf(os.Stderr, "soak of %s, seed %d\n", page.time, page.seed)
	})
	AfterEach(func() {
		if report := CurrentSpecReport(); report.Failed() {
			page.failed = append(page.failed, report.LeafNodeText+"\n"+report.FailureMessage())
		}
		for _, s := range page.parts {
			s.end() // before usher exits
		}
	})
	AfterAll(func() {
		if page.parts != nil { // the soak was requested
			page.write(filepath.Join(root(), ".cache", "soak.md"))
		}
	})

	for n, part := range []struct {
		portal  string
		limited bool // the memory limit; useless with the race detector, which needs memory itself
	}{{"iptables", false}, {"nftables", true}, {"address", false}} {
		It("the "+part.portal+" portal: loses only connections that a fault hit, and leaves no state behind", func() {
			if _, err := exec.LookPath(part.portal); err != nil && part.portal == "iptables" {
				page.notDone = append(page.notDone, "The iptables portal: "+err.Error()+".")
				Skip("iptables is not installed")
			}
			s := newSoak(part.portal, rand.New(rand.NewPCG(page.seed, uint64(n))))
			page.parts = append(page.parts, s)
			if part.limited {
				usherBinary = plain
				if s.memory, err = lab.NewMemory(); err == nil {
					usherBinary = s.memory.Wrap(plain)
				} else {
					page.notDone = append(page.notDone, fmt.Sprintf("Bounded memory with the %s portal: %v.", part.portal, err))
				}
				DeferCleanup(func() { usherBinary = raced })
			}
			s.run(page.time / 3)
		})
	}
})

// soak is the run for one portal.
type soak struct {
	portal  string
	rand    *rand.Rand // chooses events and their targets
	lab     *lab.Lab
	pod     *lab.Dialer
	node    *lab.Dialer
	dir     string
	kept    *kept
	memory  *lab.Memory // limits keeper and usher; nil without a limit
	traffic soakTraffic
	end     func() // stops the traffic
	incidents
	families [2]*soakFamily
	guest    service         // added and removed during the run
	leaving  []*soakEndpoint // receive no more clients
	events   []soakEvent
	checked  []string // results of the final checks
}

// soakFamily holds the Services of an IP family and their endpoints.
type soakFamily struct {
	of        family
	web, dns  service
	endpoints []*soakEndpoint // the last one is spare; the Services have the others
}

type soakEvent struct {
	at, until time.Time
	of        family
	what      string
}

func newSoak(portal string, r *rand.Rand) *soak {
	GinkgoHelper()
	s := &soak{portal: portal, rand: r, lab: lab.New(), dir: manifestsDir(), end: func() {}}
	if portal == "nftables" {
		s.lab.Node.Output("sh", "-c", masquerade)
	}
	s.pod, s.node = s.lab.Pods.NewDialer(2*soakers), s.lab.Node.NewDialer(4)
	s.families = [...]*soakFamily{
		{of: four, web: service{name: "web4", clusterIP: "10.96.0.10", port: 80}, dns: service{name: "dns4", clusterIP: "10.96.0.53", port: 53, protocol: "UDP"}},
		{of: six, web: service{name: "web6", clusterIP: "fd00:10:96::10", port: 80}, dns: service{name: "dns6", clusterIP: "fd00:10:96::53", port: 53, protocol: "UDP"}},
	}
	t := &s.traffic
	t.dialer, t.seed, t.incidents, t.node = s.pod, r.Uint64(), &s.incidents, s.node
	for n, f := range s.families {
		for i := range 4 {
			at := []netip.Addr{lab.Pod(i + 1), lab.Pod6(i + 1)}[n]
			f.endpoints = append(f.endpoints, &soakEndpoint{ns: s.lab.Pods, at: at, clients: t, served: map[uint64]*bool{}, open: map[*net.TCPConn]*bool{}})
			if i < 3 {
				f.endpoints[i].listen()
			}
		}
		f.write(s.dir)
		t.tcp, t.udp = append(t.tcp, f.web.vip()), append(t.udp, f.dns.vip())
		t.endpoints = append(t.endpoints, f.endpoints...)
	}
	s.guest = service{name: "guest", clusterIP: "10.96.0.20", port: 80}
	// conntrack must soon forget flows that have ended or that went astray without rules.
	for name, value := range map[string]int{"tcp_loose": 0, "tcp_timeout_time_wait": 1, "tcp_timeout_close": 1, "tcp_timeout_close_wait": 5, "tcp_timeout_last_ack": 5,
		"tcp_timeout_fin_wait": 5, "tcp_timeout_syn_sent": 5, "tcp_timeout_established": 15, "tcp_timeout_unacknowledged": 15, "tcp_timeout_max_retrans": 15, "tcp_timeout_syn_recv": 5, "udp_timeout": 5, "udp_timeout_stream": 5} {
		s.lab.Node.Output("sysctl", "-eqw", fmt.Sprintf("net.netfilter.nf_conntrack_%s=%d", name, value))
	}
	return s
}

// write writes the manifests of the Services to dir.
func (f *soakFamily) write(dir string) {
	f.web.endpoints, f.dns.endpoints = nil, nil
	for _, e := range f.endpoints[:len(f.endpoints)-1] {
		f.web.endpoints, f.dns.endpoints = append(f.web.endpoints, e.tcp()), append(f.dns.endpoints, e.udp())
	}
	f.web.write(dir)
	f.dns.write(dir)
}

// startKept starts usher and its keeper. If the routes to usher are missing, a client's reset is lost and not sent
// again; a short keepalive detects this soon.
func (s *soak) startKept(more ...string) {
	GinkgoHelper()
	s.kept = startKept(s.lab.Node, s.dir, append([]string{"--portal=" + s.portal, "--udp-idle-timeout=2s", "--keepalive=2s"}, more...)...)
}

// run makes traffic and events for the duration d, and then checks that the initial state is restored.
func (s *soak) run(d time.Duration) {
	GinkgoHelper()
	before, flows := lab.State(s.lab.Node), s.flows()
	counted := "as before"
	if _, err := os.Stat(conntrack); err != nil {
		counted = "not counted: " + err.Error()
	}
	s.startKept()
	s.end = s.traffic.start()
	warm := time.After(2 * time.Second) // this warm-up opens everything that stays open
	<-warm
	needed := s.limitMemory()
	s.end()
	s.settle()
	files, goroutines := descriptors(s.kept.child()), metric(s.node, "go_goroutines")

	s.end = s.traffic.start()
	machine := s.watchMachine()
	s.disturb(time.Now().Add(d))
	s.end()
	s.check("the machine: %s", machine())
	s.settle()
	s.checkCount("connections", "accepted", "usher_connections_accepted_total", "usher_connections_closed_total", "usher_connections_open")
	s.checkCount("UDP sessions", "begun", "usher_udp_sessions_total", "usher_udp_sessions_ended_total", "usher_udp_sessions_open")
	Eventually(func() int { return descriptors(s.kept.child()) }).WithTimeout(time.Minute).Should(BeNumerically("<=", files))
	Eventually(sample(s.node, "go_goroutines")).WithTimeout(time.Minute).Should(BeNumerically("<=", goroutines+1))
	s.check("descriptors: %d at first, %d at the end; goroutines: %.0f, %.0f", files, descriptors(s.kept.child()), goroutines, metric(s.node, "go_goroutines"))
	s.checkMemory(needed)
	s.kept.Interrupt()
	Eventually(s.kept).WithTimeout(time.Minute).Should(gexec.Exit(0))
	Expect(differences(before, lab.State(s.lab.Node))).To(BeEmpty(), "rules, routes and addresses")
	Eventually(s.flows).WithTimeout(30 * time.Second).Should(BeNumerically("<=", flows))
	s.check("rules, routes and addresses: as before; conntrack entries: %s", counted)
	for kind := range s.traffic.kinds {
		Expect(s.traffic.kinds[kind].Load()).To(BeNumerically(">", 10), "connections of kind %d", kind)
	}
	if lost := s.traffic.failures; len(lost) > 0 {
		Fail(fmt.Sprintf("%d were lost without an excuse; the first: %s", len(lost), lost[0]))
	}
}

// watchMachine records the latest timer, and the times when the kernel dropped packets because a queue or table was
// full, whatever filled it. It returns a function that stops it and returns a summary.
func (s *soak) watchMachine() func() string {
	GinkgoHelper()
	const period = 20 * time.Millisecond
	// The endpoints run in this process. usher drops an answer that comes 500 ms after its endpoint has left.
	const mostLate = 300 * time.Millisecond
	over, result := make(chan struct{}), make(chan string)
	go func() {
		var late time.Duration
		first := droppedPackets()
		for last, dropped := time.Now(), first; ; {
			select {
			case <-time.After(period):
			case <-over:
				result <- fmt.Sprintf("timers were late by %s at most, and %d packets were dropped for want of room", late.Round(time.Millisecond), dropped-first)
				return
			}
			now, before := time.Now(), dropped
			if dropped = droppedPackets(); dropped != before {
				s.note(packetsDropped, last, now)
			}
			if now.Sub(last) > mostLate {
				s.note(packetsDropped, last.Add(-time.Second), now.Add(time.Second))
			}
			late, last = max(late, now.Sub(last)-period), now
		}
	}()
	stop := sync.OnceValue(func() string { close(over); return <-result })
	DeferCleanup(func() { stop() })
	return stop
}

// droppedPackets returns the number of packets that this machine dropped because a CPU's queue (softnet_seq_show in the
// kernel has the columns) or a neighbor table was full. All namespaces share the neighbor tables. A missing file counts
// as 0.
func droppedPackets() (sum uint64) {
	for _, in := range []struct {
		file    string
		columns []int
	}{{"softnet_stat", []int{1}}, {"stat/arp_cache", []int{11, 12}}, {"stat/ndisc_cache", []int{11, 12}}} {
		text, _ := os.ReadFile("/proc/net/" + in.file)
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			for _, column := range in.columns {
				if column < len(fields) {
					n, _ := strconv.ParseUint(fields[column], 16, 64) // fails for the heading
					sum += n
				}
			}
		}
	}
	return sum
}

// checkCount checks that, for the last usher process, the number begun equals the number ended plus the number open.
func (s *soak) checkCount(what, word, begun, ended, open string) {
	GinkgoHelper()
	b, e, o := metric(s.node, begun), s.sum(ended), metric(s.node, open)
	s.check("%s: %.0f %s by the last usher, %.0f ended, %.0f open", what, b, word, e, o)
	Expect(b).To(Equal(e+o), what)
}

// limitMemory limits usher and its keeper to soakMemory above their current use, and returns the current use.
func (s *soak) limitMemory() (needed int64) {
	GinkgoHelper()
	if s.memory != nil {
		needed = s.memory.Used()
		s.memory.Limit(needed + soakMemory)
	}
	return needed
}

func (s *soak) checkMemory(needed int64) {
	GinkgoHelper()
	if s.memory == nil {
		return
	}
	kills := s.memory.Kills()
	s.check("memory: usher and keeper had %.1f MB, and could have %.1f MB; %.1f MB at most; %d killed for want of it",
		megabytes(needed), megabytes(needed+soakMemory), megabytes(s.memory.Peak()), kills)
	Expect(kills).To(BeZero(), "processes killed because of the memory limit")
}

func (s *soak) check(format string, args ...any) {
	s.checked = append(s.checked, fmt.Sprintf(format, args...))
}

// differences returns the lines that are in only one of the two texts.
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
	Eventually(func() error { _, err := s.traffic.get("/metrics"); return err }).WithTimeout(time.Minute).Should(Succeed()) // a takeover may be under way
	for _, open := range []string{"usher_connections_open", "usher_udp_sessions_open"} {
		Eventually(sample(s.node, open)).WithTimeout(time.Minute).Should(BeZero(), open)
	}
}

// sum returns the sum of all series of a metric that has labels.
func (s *soak) sum(name string) (sum float64) {
	GinkgoHelper()
	for line := range strings.Lines(adminText(s.node, "/metrics")) {
		if strings.HasPrefix(line, name+"{") {
			value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
			Expect(err).NotTo(HaveOccurred())
			sum += value
		}
	}
	return sum
}

// conntrack lists the connections that the kernel tracks. Not every kernel has it.
const conntrack = "/proc/net/nf_conntrack"

// flows returns the number of entries that conntrack lists on the node. The kernel's own count includes some expired
// entries; reading the list removes them.
func (s *soak) flows() int {
	GinkgoHelper()
	return strings.Count(s.lab.Node.Output("sh", "-c", "test ! -e "+conntrack+" || cat "+conntrack), "\n")
}

// soakPage is the report of a soak run.
type soakPage struct {
	seed    uint64
	time    time.Duration
	parts   []*soak
	failed  []string // reasons for a failed run
	notDone []string
}

// write writes the page and prints its path.
func (p *soakPage) write(path string) {
	var b strings.Builder
	fmt.Fprintf(&b, "# Soak of %s, seed %d\n\n", p.time, p.seed)
	result := "Green: nothing else was lost"
	if len(p.failed) > 0 {
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
	for _, why := range p.failed {
		fmt.Fprintf(&b, "```\n%s\n```\n\n", why)
	}
	for _, s := range p.parts {
		for _, c := range s.checked {
			fmt.Fprintf(&b, "- %s: %s\n", s.portal, c)
		}
		s.traffic.mu.Lock()
		lost := s.traffic.failures
		for _, failure := range lost[:min(len(lost), 50)] {
			fmt.Fprintf(&b, "- %s: LOST %s\n", s.portal, failure)
		}
		if more := len(lost) - 50; more > 0 {
			fmt.Fprintf(&b, "- %s: LOST %d more\n", s.portal, more)
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
- Steps of the clock: no namespace has a clock of its own that can be set (time_namespaces(7)), and
  the machine's is left alone.
`)
	for _, what := range p.notDone {
		fmt.Fprintf(&b, "- %s\n", what)
	}
	Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	Expect(os.WriteFile(path, []byte(b.String()), 0o644)).To(Succeed())
	fmt.Fprintf(os.Stderr, "soak: %s, see %s\n", result, path)
}
