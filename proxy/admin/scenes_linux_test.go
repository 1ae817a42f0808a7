package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/accesslog"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/test/lab"
)

// scenesFile holds the expected scenes. "go test ./proxy/admin -update" writes it.
const scenesFile = "testdata/scenes.golden"

// scenes records what users can observe of connections: events, connections, access log lines and metrics. Names
// replace addresses, ports and times, which differ between runs.
type scenes struct {
	*node
	out    bytes.Buffer
	names  map[string]string // of addresses
	access map[accesslog.Format]*bytes.Buffer
	stop   func() // ends the access logs; returns when they are complete
	last   string // ID of the last recorded event
}

// name replaces addr by name in the output.
func (s *scenes) name(addr fmt.Stringer, name string) { s.names[addr.String()] = name }

// attach starts recording n.
func (s *scenes) attach(n *node) {
	GinkgoHelper()
	s.node, s.last = n, ""
	s.access = map[accesslog.Format]*bytes.Buffer{accesslog.JSON: {}, accesslog.Text: {}}
	log := logrus.New()
	log.SetOutput(GinkgoWriter)
	ctx, stop := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	s.stop = func() { stop(); writing.Wait() }
	DeferCleanup(s.stop)
	for format, out := range s.access {
		l, err := accesslog.New(n.proxy.Trace, accesslog.Options{Path: "-", Out: out, Format: format, Log: log})
		Expect(err).NotTo(HaveOccurred())
		writing.Go(func() { l.Run(ctx) })
	}
}

// listener returns the listener's address of a Service, and names it.
func (s *scenes) listener(service string) string {
	GinkgoHelper()
	for _, st := range s.proxy.Status() {
		if st.Port.ID.Service == service {
			s.name(st.Listeners[0], "VIP")
			return st.Listeners[0].String()
		}
	}
	Fail("no listener for " + service)
	return ""
}

// connect connects to a Service.
func (s *scenes) connect(network, service string) net.Conn {
	GinkgoHelper()
	c, err := net.Dial(network, s.listener(service))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { c.Close() })
	Expect(c.SetDeadline(time.Now().Add(10 * time.Second))).To(Succeed())
	return c
}

// greeted connects to a Service whose endpoint sends five bytes at once.
func (s *scenes) greeted(service string) net.Conn {
	GinkgoHelper()
	c := s.connect("tcp", service)
	_, err := io.ReadFull(c, make([]byte, 5))
	Expect(err).NotTo(HaveOccurred())
	return c
}

// refused connects to a Service whose listener resets the connection, possibly before connect has returned.
func (s *scenes) refused(service string) {
	GinkgoHelper()
	c, err := net.Dial("tcp", s.listener(service))
	if err == nil {
		_, err = io.ReadAll(c)
		c.Close()
	}
	Expect(err).To(HaveOccurred())
}

// ask sends five bytes and waits for five.
func ask(c net.Conn) {
	GinkgoHelper()
	_, err := io.WriteString(c, "hello")
	Expect(err).NotTo(HaveOccurred())
	_, err = io.ReadFull(c, make([]byte, 5))
	Expect(err).NotTo(HaveOccurred())
}

// ends waits until the trace has n ended connections.
func (s *scenes) ends(n int) {
	GinkgoHelper()
	Eventually(func() int {
		var list api.ConnectionList
		s.get("/connections?state=ended", &list)
		return list.Total
	}).WithTimeout(10 * time.Second).Should(Equal(n))
}

// record writes the events since the last call, and the connections as the API shows them.
func (s *scenes) record(title string) {
	GinkgoHelper()
	fmt.Fprintf(&s.out, "\n=== %s\n", title)
	query := "follow=false&history=true"
	events := s.subscribe(query, s.last).events
	for _, e := range events {
		s.last = e.ID
		e.ID = e.ID[strings.LastIndexByte(e.ID, '-')+1:]
		s.write(e)
	}
	var list struct{ Items []map[string]any }
	s.get("/connections?state=all", &list)
	seen := map[uint64]bool{}
	for _, e := range events {
		seen[e.Connection] = true
	}
	for _, c := range slices.Backward(list.Items) {
		if seen[uint64(c["id"].(float64))] {
			s.write(c)
		}
	}
}

var (
	client    = regexp.MustCompile(`127\.0\.0\.1:\d+`) // all other addresses have names already
	duration  = regexp.MustCompile(`\b\d+(\.\d+)? m?s\b`)
	jsonMs    = regexp.MustCompile(`("\w*(?:Ms|ms)":)[0-9.e-]+`)
	timestamp = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`)
	textMs    = regexp.MustCompile(`\b\d+\.\d{3}\b`)
)

// write writes v as JSON, without the parts that differ between runs.
func (s *scenes) write(v any) {
	GinkgoHelper()
	text, err := json.Marshal(v)
	Expect(err).NotTo(HaveOccurred())
	s.line(string(text))
}

func (s *scenes) line(text string) {
	for _, addr := range slices.Backward(slices.SortedFunc(maps.Keys(s.names), func(a, b string) int { return len(a) - len(b) })) {
		text = strings.ReplaceAll(text, addr, s.names[addr])
	}
	text = client.ReplaceAllString(text, "CLIENT")
	text = duration.ReplaceAllString(text, "TOOK")
	text = jsonMs.ReplaceAllString(text, "${1}TOOK")
	text = timestamp.ReplaceAllString(text, "TIME")
	fmt.Fprintln(&s.out, textMs.ReplaceAllString(text, "TOOK"))
}

// counted matches the metrics of connections and datagrams.
var counted = regexp.MustCompile(`^usher_(connection|attempt|endpoint|service|sctp|udp|quarantine|probe|queue|bytes|retr|choice)`)

// summarize writes the access log and the metrics.
func (s *scenes) summarize(title string) {
	GinkgoHelper()
	s.stop()
	for _, format := range []accesslog.Format{accesslog.JSON, accesslog.Text} {
		fmt.Fprintf(&s.out, "\n=== access log %s (%s)\n", title, format)
		for line := range strings.Lines(s.access[format].String()) {
			s.line(strings.TrimSuffix(line, "\n"))
		}
	}
	fmt.Fprintf(&s.out, "\n=== metrics %s\n", title)
	for _, family := range s.gather() {
		if !counted.MatchString(family.GetName()) {
			continue
		}
		for _, m := range family.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			var value any
			switch {
			case m.Counter != nil:
				value = m.Counter.GetValue()
			case m.Histogram != nil:
				value = fmt.Sprint(m.Histogram.GetSampleCount(), " observations")
			default:
				continue // a gauge may show a limit of this machine
			}
			s.line(fmt.Sprintf("%s{%s} %v", family.GetName(), strings.Join(labels, ","), value))
		}
	}
}

var _ = Describe("recorded scenes", func() {
	It("match the golden file in events, connections, the access log and metrics", func() {
		s := &scenes{names: map[string]string{}}
		s.attach(newNode())
		echo := lab.Backend(func(c net.Conn) { _, _ = io.Copy(c, c) })
		greeting := answering()
		dead := netip.MustParseAddrPort("127.0.0.9:9")
		udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { udp.Close() })
		lab.Echo(udp)
		echoUDP := udp.LocalAddr().(*net.UDPAddr).AddrPort()
		s.name(echo, "ECHO")
		s.name(greeting, "GREETING")
		s.name(dead, "DEAD")
		s.name(echoUDP, "ECHO-UDP")

		private := service("private", "10.96.0.4", echo)
		private.Ports[0].VIPs[0].Sources = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
		names := service("names", "10.96.0.5", dead, echoUDP)
		names.Ports[0].Protocol = config.UDP
		silent := service("silent", "10.96.0.7", echo)
		silent.Ports[0].AccessLog = false
		s.proxy.Apply([]config.Service{
			service("web", "10.96.0.1", echo), service("half", "10.96.0.2", dead, greeting), service("down", "10.96.0.3", dead),
			private, names, silent,
		})

		c := s.connect("tcp", "web")
		ask(c)
		Eventually(func() int64 { // datagrams are counted after they are sent
			var open api.Connection
			s.get("/connections/1", &open)
			return open.BytesToClient
		}).Should(BeEquivalentTo(5))
		s.record("open connection")
		Expect(c.Close()).To(Succeed())
		s.ends(1)
		s.record("clean close")

		c = s.greeted("half")
		Expect(c.(*net.TCPConn).SetLinger(0)).To(Succeed())
		Expect(c.Close()).To(Succeed())
		s.ends(2)
		s.record("retry, quarantine, reset by the client")

		c = s.greeted("half")
		Expect(c.Close()).To(Succeed())
		s.ends(3)
		s.record("endpoint in quarantine")

		s.refused("down")
		s.ends(4)
		s.record("wait, every attempt failed")

		s.refused("private")
		s.ends(5)
		s.record("refused")

		c = s.connect("tcp", "silent")
		ask(c)
		Expect(c.Close()).To(Succeed())
		s.ends(6)
		s.record("left out of the access log")

		first := s.connect("udp", "names")
		ask(first)
		s.record("UDP session, retried")

		By("handing over to a successor")
		sockets := map[string]*os.File{}
		all, more, _, release, err := s.proxy.HandOver()
		Expect(err).NotTo(HaveOccurred())
		for sock := range all {
			sockets[sock.Name] = sock.File
		}
		later := map[string]*os.File{}
		for sock := range more {
			later[sock.Name] = sock.File
		}
		release()
		s.summarize("before the handover")
		before := s.proxy
		s.attach(newNode())
		s.proxy.Inherit(sockets)
		s.proxy.Apply([]config.Service{service("web", "10.96.0.1", echo), names})
		s.proxy.InheritRest(later)
		before.Stop()
		ask(first)
		s.record("adopted UDP session")
		removed := names
		removed.Ports = nil
		s.proxy.Apply([]config.Service{removed})
		s.ends(1)
		s.record("adopted UDP session whose VIP is removed")
		s.summarize("after the handover")

		if *update {
			Expect(os.WriteFile(scenesFile, s.out.Bytes(), 0o644)).To(Succeed())
		}
		want, err := os.ReadFile(scenesFile)
		Expect(err).NotTo(HaveOccurred(), "go test ./proxy/admin -update writes it")
		Expect(strings.Split(s.out.String(), "\n")).To(HaveExactElements(strings.Split(string(want), "\n")))
	})
})
