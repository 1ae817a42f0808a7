package show_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/admin/api"
)

func TestShow(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "show")
}

var web = api.Service{
	Namespace: "default", Name: "web", State: api.ServiceDegraded,
	Ports: []api.PortSummary{
		{Name: "http", Family: "IPv4", Protocol: "TCP", VIP: "10.96.0.10:80", Listener: "0.0.0.0:36841"},
		{Name: "http", Family: "IPv6", Protocol: "TCP", VIP: "[fd00::10]:80", Listener: "[::]:36841"},
	},
	Endpoints: api.EndpointCounts{Total: 3, Ready: 2, Quarantined: 1},
	Totals:    api.Totals{Active: 2, Accepted: 1210, Retries: 4, Failed: 1, BytesToEndpoint: 730, BytesToClient: 1310000},
}

// retried is a connection whose first endpoint did not answer and whose second endpoint refused.
var retried = api.Connection{
	ID: 7, Service: "default/web", Port: "http", Family: "IPv4", Protocol: "TCP", Client: "192.0.2.2:48200", VIP: "10.96.0.10:80",
	State: api.Ended, Accepted: time.Date(2026, 11, 21, 13, 5, 0, 123e6, time.Local), Endpoint: "10.1.0.8:80", Pod: "default/web-2",
	ConnectMs: 500, DurationMs: 1500, BytesToEndpoint: 73, BytesToClient: 131, End: "endpoint-closed",
	Attempts: []api.Attempt{
		{Number: 1, Endpoint: "10.1.0.7:80", Pod: "default/web-1", Reason: "round robin", DurationMs: 250, Result: "no-answer", Error: "no answer"},
		{Number: 2, Endpoint: "10.1.0.9:80", Reason: "round robin", Skipped: 1, StartMs: 250, DurationMs: 0.2, Result: "refused", Error: "connection refused"},
		{Number: 3, Endpoint: "10.1.0.8:80", Pod: "default/web-2", Reason: "only one left", StartMs: 250.2, DurationMs: 249.8, Result: "connected"},
	},
}

// sees returns s in the API's form.
func sees(s portal.SourceAddress) api.Sees { return api.Sees{Source: s.String(), SourceText: s.Text()} }

// lines returns the lines of a table.
func lines[T any](columns []show.Column[T], wide bool, rows ...T) []string {
	GinkgoHelper()
	var out bytes.Buffer
	Expect(show.Table(&out, columns, rows, wide, show.Unlimited)).To(Succeed())
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

var _ = DescribeTable("the remaining time of a quarantine",
	func(probed bool, seconds float64, says string) {
		Expect(show.QuarantineCell(&api.Quarantine{Probed: probed, SecondsLeft: seconds, Cause: "x"})).To(Equal(says))
	},
	Entry("until a probe", true, 7.2, "probe in 7s: x"),
	Entry("until a probe that is due", true, 0.2, "probe now: x"),
	Entry("without probes", false, 7.2, "another 7s: x"),
	Entry("after its end", false, 0.0, "ends now: x"),
)

var _ = Describe("a table", func() {
	It("shows Services", func() {
		Expect(lines(show.Services, false, web)).To(Equal([]string{
			"NAMESPACE  NAME  STATE     VIP                   PORTS   ENDPOINTS  ACTIVE  CONNECTIONS  RETRIES  FAILED",
			"default    web   degraded  10.96.0.10, fd00::10  80/TCP  2/3             2         1210        4       1",
		}))
	})

	It("shows more columns for Services when it is wide", func() {
		problem := web
		problem.AffinitySeconds, problem.Totals.Queued = 10800, 4
		problem.Latency = &api.Latency{ConnectP50Ms: 0.31, ConnectP99Ms: 251, FirstByteP50Ms: 1, FirstByteP99Ms: 2500}
		problem.Ports = []api.PortSummary{{Protocol: "SCTP", VIP: "10.96.0.10:99", Settings: map[string]string{"queue-timeout": "30s", "max-connections-per-endpoint": "10"}, ProxyProtocol: &api.ProxyProtocol{ToEndpoints: "v2", From: []string{"10.0.0.0/8"}}, Problem: &api.Problem{Reason: "SCTPOff", Message: "off"}}}
		Expect(lines(show.Services, true, problem)[1]).To(HaveSuffix("1  0.31/251 ms  1.00 ms/2.5 s         730 B      1.3 MB       4  3h        max-connections-per-endpoint=10, queue-timeout=30s  -           v2 to endpoints, from 10.0.0.0/8"))
		Expect(lines(show.Services, true, problem)[1]).To(HavePrefix("default    web   degraded  SCTPOff: off  10.96.0.10  99/SCTP "))
		By("fitting a terminal of 160 columns, the problem and the counts first")
		problem.Ports[0].Problem.Message = strings.Repeat("a long reason ", 20)
		for _, line := range show.Fit(show.Shown(show.Services, []api.Service{problem}, true), []api.Service{problem}, 160) {
			Expect(ansi.StringWidth(line)).To(BeNumerically("<=", 160))
			Expect(line).To(Or(MatchRegexp(`STATE +PROBLEM +VIP .* FAILED +CONNECT`), MatchRegexp(`degraded +SCTPOff: a long reason .*… +10\.96\.0\.10 .* 0\.31/251 ms`)))
		}
		problem.Ports[0].Problem.Message = "off"
		problem.Ports[0].Topology = &api.Topology{Keys: []string{"a"}, Key: "a", Value: "7"}
		Expect(lines(show.Services, true, problem)[1]).To(HaveSuffix("  a=7"))
	})

	It("shows equal problems of several ports and families once", func() {
		problem := web
		problem.Ports = slices.Clone(web.Ports)
		for i := range problem.Ports {
			problem.Ports[i].Problem = &api.Problem{Reason: "SCTPOff", Message: "off"}
		}
		Expect(lines(show.Services, true, problem)[1]).To(MatchRegexp(`degraded +SCTPOff: off +10\.96\.0\.10`))
	})

	It("shows which source address endpoints see when it is wide, with the reason", func() {
		mixed := web
		mixed.Ports = slices.Clone(web.Ports)
		mixed.Ports[0].Sees = sees(portal.SourceClient)
		mixed.Ports[1].Sees = sees(portal.SourceSCTP)
		Expect(lines(show.Services, true, mixed)[1]).To(HaveSuffix(" client or node, this node's address, because the kernel's SCTP cannot use an address that the node does not have"))
		mixed.Ports[1].Sees = mixed.Ports[0].Sees
		Expect(lines(show.Services, true, mixed)[1]).To(HaveSuffix(" client or node"))
	})

	It("shows endpoints, and the remaining time of their quarantine", func() {
		detail := api.ServiceDetail{Service: web, Details: []api.ServicePort{{
			PortSummary: web.Ports[0],
			Endpoints: []api.Endpoint{
				{Address: "10.1.0.7:80", Pod: "default/web-1", State: api.EndpointQuarantined, Failed: 5,
					Quarantine: &api.Quarantine{SecondsLeft: 7.2, Cause: "connection refused"}},
				{Address: "10.1.0.8:80", State: api.EndpointReady, Share: 0.4, Active: 2, Limit: 10, Connected: 9, Latency: &api.Latency{ConnectP50Ms: 0.31, ConnectP99Ms: 251}},
				{Address: "10.1.0.9:80", State: api.EndpointQuarantined, Failed: 1,
					Quarantine: &api.Quarantine{SecondsLeft: 3.6, Probed: true, Cause: "no answer"}},
			},
		}}}
		Expect(lines(show.Endpoints, false, show.PortEndpoints(detail)...)).To(Equal([]string{
			"NAMESPACE  SERVICE  PORT  ENDPOINT     POD    STATE                    ACTIVE  CONNECTED  FAILED      CONNECT  FIRST BYTE  QUARANTINE",
			"default    web      http  10.1.0.7:80  web-1  quarantined                   0          0       5            -           -  another 7s: connection refused",
			"default    web      http  10.1.0.8:80  -      ready, 40% of its share    2/10          9       0  0.31/251 ms           -  -",
			"default    web      http  10.1.0.9:80  -      quarantined                   0          0       1            -           -  probe in 4s: no answer",
		}))
	})

	It("shows since when ended connections are kept, and failed, retried and slow ones", func() {
		now := time.Now()
		Expect(show.Reaches(api.Reaches{All: now.Add(-12 * time.Second), Amiss: now.Add(-58 * time.Minute)}, now)).
			To(Equal("Includes connections that ended in the last 12s, and failed, retried, slow or unanswered ones of the last 58m0s."))
		Expect(show.Reaches(api.Reaches{All: now.Add(-time.Minute), Amiss: now.Add(-time.Minute)}, now)).To(Equal("Includes connections that ended in the last 1m0s."))
	})

	It("shows connections", func() {
		Expect(lines(show.Connections, false, retried)).To(Equal([]string{
			"ID  NAMESPACE  SERVICE   CLIENT           ENDPOINT     POD    STATE            ATTEMPTS  DURATION  TO ENDPOINT  TO CLIENT",
			" 7  default    web:http  192.0.2.2:48200  10.1.0.8:80  web-2  endpoint-closed         3     1.5 s         73 B      131 B",
		}))
	})

	It("shows a UDP session that only sends as sending, not as looking for an endpoint", func() {
		session := api.Connection{ID: 9, Protocol: "UDP", State: api.Sending, DurationMs: 120, BytesToEndpoint: 500}
		Expect(lines(show.Connections, false, session)[1]).To(And(ContainSubstring(" sending "), ContainSubstring(" 500 B ")))
		Expect(strings.Join(show.Waterfall(session, 80), "\n")).To(And(ContainSubstring("open for 120 ms, no byte from the endpoint yet"), ContainSubstring("500 B to the endpoint"), Not(ContainSubstring("looking"))))
	})

	It("shows clients with session affinity", func() {
		Expect(lines(show.Affinity, false, api.AffinityEntry{Service: "default/web", Client: "192.0.2.2", Endpoint: "10.1.0.8:80", SecondsLeft: 10712})).To(Equal([]string{
			"NAMESPACE  SERVICE  CLIENT     ENDPOINT     POD   LEFT",
			"default    web      192.0.2.2  10.1.0.8:80  -    2h59m",
		}))
	})

	It("shows why a Service is degraded as its problem", func() {
		service := api.Service{Namespace: "default", Name: "web", State: api.ServiceDegraded, Trouble: "1 of 3 endpoints: 10.1.0.8:80 quarantined, no answer"}
		Expect(lines(show.Services, true, service)[1]).To(ContainSubstring(" 1 of 3 endpoints: 10.1.0.8:80 quarantined, no answer "))
		service.Problems = []api.Problem{{Reason: "PortNameDiffers", Message: "no port is named http"}}
		Expect(lines(show.Services, true, service)[1]).To(And(ContainSubstring("PortNameDiffers: no port is named http"), Not(ContainSubstring("1 of 3"))))
	})

	It("shows rules, and below a differing rule the one in the kernel", func() {
		rule := api.PortalRule{Mode: "nftables", Service: "default/web:http", Protocol: "TCP", VIP: "10.96.0.10:80", State: "differs",
			PortalEffect: api.PortalEffect{Action: "redirect", LocalPort: 36841},
			Installed:    &api.PortalEffect{Action: "reject", Sources: []string{"10.0.0.0/8"}}}
		Expect(lines(show.Portals, false, show.WithInstalled([]api.PortalRule{rule})...)).To(Equal([]string{
			"STATE    PORTAL    VIP                ACTION    LOCAL PORT  SOURCES     SERVICE PORT",
			"differs  nftables  10.96.0.10:80/TCP  redirect  36841       all         default/web:http",
			"                   (installed)        reject    -           10.0.0.0/8  -",
		}))
		for _, row := range show.WithInstalled([]api.PortalRule{rule}) {
			Expect(show.ServiceOfRule(row)).To(Equal("default/web"), "get portals web selects both")
		}
		Expect(show.ServiceOfRule(api.PortalRule{Service: "default/web/IPv6"})).To(Equal("default/web"))
	})

	It("aligns cells with multibyte characters or colors", func() {
		columns := []show.Column[string]{{Title: "A", Cell: func(s string) string { return s }}, {Title: "B", Cell: func(string) string { return "x" }}}
		Expect(lines(columns, false, "äöü", show.Good.Text("ok"))).To(Equal([]string{
			"A    B", "äöü  x", show.Good.Text("ok") + "   x",
		}))
	})

	It("omits columns and shortens names on a narrow terminal", func() {
		columns := []show.Column[string]{
			{Title: "NAME", Least: 7, Cell: func(s string) string { return s }},
			{Title: "BYTES", Right: true, Rank: 2, Cell: func(string) string { return "12345678" }},
			{Title: "FAILED", Right: true, Rank: 1, Cell: func(string) string { return "9" }},
		}
		rows := []string{"checkout-frontend-v2", "web"}
		Expect(show.Fit(columns, rows, 30)).To(Equal([]string{
			"NAME             BYTES  FAILED", "checko…nd-v2  12345678       9", "web           12345678       9"}))
		Expect(show.Fit(columns, rows, 20)).To(Equal([]string{"NAME          FAILED", "checko…nd-v2       9", "web                9"}))
		Expect(show.Fit(columns, rows, 7)).To(Equal([]string{"NAME", "che…-v2", "web"}))
	})
})

var _ = DescribeTable("the columns of a table",
	func(width int, needs []show.Need, widths ...int) { Expect(show.Widths(needs, width)).To(Equal(widths)) },
	Entry("keep their maximum widths if there is enough space", 80, []show.Need{{Most: 10}, {Most: 5}}, 10, 5),
	Entry("lose the one with the greatest rank first", 12, []show.Need{{Most: 5}, {Most: 5, Rank: 2}, {Most: 5, Rank: 1}}, 5, -1, 5),
	Entry("lose the last of several with equal ranks", 12, []show.Need{{Most: 5}, {Most: 5}, {Most: 5}}, 5, 5, -1),
	Entry("shorten a name before any is omitted", 15, []show.Need{{Most: 70, Least: 8}, {Most: 5}}, 8, 5),
	Entry("give the remaining space to a name", 40, []show.Need{{Most: 70, Least: 8}, {Most: 5}}, 33, 5),
	Entry("share the space evenly among names", 30, []show.Need{{Most: 70, Least: 8}, {Most: 9, Least: 8}, {Most: 70, Least: 8}}, 9, 9, 8),
	Entry("keep a small one after a wide one was omitted", 12, []show.Need{{Most: 5}, {Most: 9, Rank: 1}, {Most: 5, Rank: 2}}, 5, -1, 5),
	Entry("keep one even if it does not fit", 3, []show.Need{{Most: 70, Least: 8}, {Most: 5, Rank: 1}}, 8, -1),
	Entry("can be empty", 3, []show.Need{{Most: 0}, {Most: 1}}, 0, 1),
)

var _ = DescribeTable("a name is shortened in the middle to the given width",
	func(name string, width int, is string) { Expect(show.Middle(name, width)).To(Equal(is)) },
	Entry(nil, "web", 3, "web"),
	Entry(nil, "checkout-frontend-v2", 11, "check…nd-v2"),
	Entry(nil, "checkout-frontend-v2", 12, "checko…nd-v2"),
	Entry(nil, "日本語の名前", 8, "日…名前"),
	Entry(nil, "web", 1, "…"),
)

var _ = Describe("a waterfall", func() {
	plain := func(width int) (out []string) {
		for _, line := range show.Waterfall(retried, width) {
			out = append(out, strings.TrimRight(ansi.Strip(line), " "))
		}
		return out
	}

	It("shows the time of the first byte", func() {
		c := retried
		c.FirstByteMs = 620
		Expect(ansi.Strip(show.Waterfall(c, 67)[1])).To(Equal("accepted 13:05:00.123, established after 500 ms, first byte after 620 ms, ended after 1.5 s: endpoint-closed"))
	})

	It("has a bar for each attempt, with the length of its duration, and fits into the width", func() {
		Expect(plain(76)).To(Equal([]string{
			"#7 default/web:http  TCP  192.0.2.2:48200 → 10.96.0.10:80",
			"accepted 13:05:00.123, established after 500 ms, ended after 1.5 s: endpoint-closed",
			"73 B to the endpoint, 131 B to the client",
			"",
			" 1 10.1.0.7:80 default/web-1 (round robin)",
			"   ████████████████████                     no answer after 250 ms",
			" 2 10.1.0.9:80 (round robin, skipped 1 in quarantine)",
			"                       █                    connection refused after 0.20 ms",
			" 3 10.1.0.8:80 default/web-2 (only one left)",
			"                       ████████████████████ connected in 250 ms",
			"   0─────────────────────────────────500 ms",
		}))
	})

	It("shows which source address endpoints see and why, once per change", func() {
		c := retried
		c.Attempts = slices.Clone(c.Attempts)
		for i, s := range []portal.SourceAddress{portal.SourceClient, portal.SourceClient, portal.SourceElsewhere} {
			c.Attempts[i].Sees = sees(s)
		}
		shown := strings.Join(show.Waterfall(c, 67), "\n")
		Expect(strings.Count(shown, "the endpoint sees ")).To(Equal(2))
		Expect(ansi.Strip(shown)).To(MatchRegexp(`(?s)\(round robin\)\n[^\n]*\n   the endpoint sees its client's own address, because replies return through this node\n 2 .*\(only one left\)\n[^\n]*\n   the endpoint sees this node's address, because neither `))
	})

	It("fits a narrow terminal", func() {
		Expect(plain(20)).To(ContainElement("   █████      no answer after 250 ms"))
	})

	It("shows that no attempt has ended yet", func() {
		c := api.Connection{ID: 9, State: api.Connecting, DurationMs: 120}
		Expect(ansi.Strip(strings.Join(show.Waterfall(c, 80), "\n"))).To(And(
			ContainSubstring("looking for an endpoint for 120 ms"), ContainSubstring("No attempt has ended.")))
	})
})

var _ = Describe("an explanation", func() {
	It("lists the endpoints that would and would not be tried, with reasons", func() {
		e := api.Explanation{Service: "default/web", Port: "http", Family: "IPv6", Protocol: "TCP", Client: "fd00::7", VIP: "[fd00::10]:80", VIPKind: "ClusterIP",
			Verdict: api.WouldTry, Policy: "internalTrafficPolicy Cluster: endpoints on all nodes",
			Order: []api.Candidate{
				{Endpoint: "[fd00::1]:80", Pod: "default/web-1", Reason: "affinity", Text: "the client had it before", Sees: sees(portal.SourceClient)},
				{Endpoint: "[fd00::2]:80", Reason: "only one left", Text: "no other endpoint is left"}},
			NotTried:   []api.Candidate{{Endpoint: "[fd00::3]:80", Reason: "not-ready", Text: "it is not ready"}},
			ScheduleMs: []float64{250, 1000},
			Text:       []string{"Its affinity is kept.", "First [fd00::1]:80: the client had it before."},
		}
		Expect(ansi.Strip(strings.Join(show.Explanation(e), "\n"))).To(Equal(strings.Join([]string{
			"default/web:http/IPv6  TCP  client fd00::7 → [fd00::10]:80 (ClusterIP)",
			"internalTrafficPolicy Cluster: endpoints on all nodes",
			"Its affinity is kept.",
			"",
			"Would be tried, in this order until one connects:",
			"  1  [fd00::1]:80  default/web-1  affinity       the client had it before",
			"     the endpoint sees its client's own address, because replies return through this node",
			"  2  [fd00::2]:80                 only one left  no other endpoint is left",
			"",
			"Attempt timeouts, by time slot: 250 ms, then 1.0 s.",
			"",
			"Would not be tried:",
			"  -  [fd00::3]:80    not-ready  it is not ready",
		}, "\n")))
		e.Protocol = "UDP"
		Expect(show.Explanation(e)).To(ContainElement("Would be tried, in this order until one does not refuse:"))
		Expect(show.Explanation(e)).NotTo(ContainElement(ContainSubstring("timeouts")), "UDP has none")
	})
})

var _ = Describe("an event", func() {
	event := func(kind, err, end string) string {
		return show.Event("", 0, api.Event{Time: time.Date(2026, 11, 21, 13, 5, 0, 0, time.Local), Kind: kind, Text: "#7 text", Error: err, End: end})
	}

	DescribeTable("has a color by its kind and result", func(kind, err, end string, style show.Style) {
		Expect(event(kind, err, end)).To(Equal(show.Quiet.Text("13:05:00.000") + " " + style.Text("#7 text")))
	},
		Entry(nil, api.KindAccepted, "", "", show.Plain),
		Entry(nil, api.KindAttempt, "", "", show.Good),
		Entry(nil, api.KindAttempt, "no answer", "", show.Care),
		Entry(nil, api.KindClosed, "", "client-closed", show.Quiet),
		Entry(nil, api.KindClosed, "", "attempts-failed", show.Bad),
		Entry(nil, api.KindEndpointProbed, "no answer", "", show.Care),
		Entry(nil, api.KindEndpointRecovered, "", "", show.Note),
	)

	It("contains no terminal control characters", func() {
		Expect(show.Clean("a\x1b[2Jb\u202ec\n")).To(Equal("a\ufffd[2Jb\ufffdc\ufffd"))
	})

	It("shows the number of missed steps", func() {
		Expect(ansi.Strip(show.Missed(1))).To(Equal("… 1 step missed"))
		Expect(ansi.Strip(show.Missed(12))).To(Equal("… 12 steps missed"))
	})
})

var _ = DescribeTable("an amount is formatted in human-readable form", func(got, want string) { Expect(got).To(Equal(want)) },
	Entry(nil, show.Bytes(0), "0 B"),
	Entry(nil, show.Bytes(999), "999 B"),
	Entry(nil, show.Bytes(1234), "1.2 kB"),
	Entry(nil, show.Bytes(20e6), "20 MB"),
	Entry(nil, show.Bytes(999.9e3), "1.0 MB"),
	Entry(nil, show.Seconds(7.2), "7s"),
	Entry(nil, show.Seconds(187), "3m7s"),
	Entry(nil, show.Seconds(10800), "3h"),
	Entry(nil, show.Seconds(5400), "1h30m"),
	Entry(nil, show.Seconds(10199), "2h50m"),
	Entry(nil, show.Rate(0.31), "0.3"),
	Entry(nil, show.Rate(12.4), "12"),
)

var _ = Describe("a diff of manifests", func() {
	port := func(change func(*api.ServicePort)) *api.ServicePort {
		p := &api.ServicePort{PortSummary: api.PortSummary{Name: "http", Family: "IPv4", Protocol: "TCP", Settings: map[string]string{"scheduler": "rr"}}, Policies: api.Policies{Internal: "Cluster", External: "Cluster"},
			VIPs:      []api.VIP{{Kind: "ClusterIP", Address: "10.96.0.10:80"}, {Kind: "NodePort", Address: "0.0.0.0:30080"}},
			Endpoints: []api.Endpoint{{Address: "10.1.0.7:80", Node: "n1", Weight: 1, Ready: true, UsedFor: []string{"internal", "external", "node"}}}}
		change(p)
		return p
	}
	asIs := port(func(*api.ServicePort) {})
	redirects := portal.Traits{Redirects: true}
	shown := func(now, planned *api.ServicePort, traits portal.Traits) []string {
		p := show.Diff{Node: "n1", Portal: "iptables", ComparedWith: "127.0.0.1:10249"}
		p.Compare("default/web", now, planned, traits)
		lines := p.Lines()
		for i := range lines {
			lines[i] = strings.TrimSpace(ansi.Strip(lines[i]))
			Expect(len(lines[i])).To(BeNumerically("<=", 80))
		}
		return lines[1:]
	}
	It("shows added and removed service ports", func() {
		Expect(shown(nil, asIs, redirects)).To(Equal([]string{"", "+ default/web:http  TCP",
			"+  ClusterIP 10.96.0.10:80  redirected to usher",
			"+  NodePort 30080           redirected to usher",
			"+  10.1.0.7:80              for all clients, on n1",
			"+  scheduler                rr", "",
			"1 service port: 1 added, 0 removed, 0 changed, 0 unchanged."}))
		Expect(shown(asIs, nil, redirects)).To(ContainElements("- default/web:http  TCP", "-  NodePort 30080           redirected to usher"))
	})
	It("counts unchanged service ports", func() {
		Expect(shown(asIs, asIs, redirects)).To(Equal([]string{"1 service port: 0 added, 0 removed, 0 changed, 1 unchanged."}))
	})
	It("shows the effect on clients if a policy leaves this node without an endpoint", func() {
		local := port(func(p *api.ServicePort) {
			p.Policies.External = "Local"
			p.Endpoints[0].UsedFor = []string{"internal", "node"}
		})
		Expect(shown(asIs, local, redirects)).To(Equal([]string{"", "~ default/web:http  TCP",
			"~  NodePort 30080         dropped, except from this node: no endpoint here",
			"was: redirected to usher",
			"~  10.1.0.7:80            for internal, node, on n1",
			"was: for all clients, on n1",
			"+  externalTrafficPolicy  Local", "",
			"1 service port: 0 added, 0 removed, 1 changed, 0 unchanged."}))
	})
	It("shows that clients are refused, not dropped, by a portal that only listens", func() {
		local := port(func(p *api.ServicePort) { p.Endpoints[0].UsedFor = []string{"internal", "node"} })
		Expect(shown(asIs, local, portal.Traits{Local: true})).To(ContainElement("~  NodePort 30080  refused, except from this node: no endpoint here"))
	})
	It("shows each changed source range and load balancer, and another protocol", func() {
		ranges := func(last string) *api.ServicePort {
			return port(func(p *api.ServicePort) {
				p.VIPs = []api.VIP{{Kind: "LoadBalancerIP", Address: "192.0.2.1:80", Sources: []string{"10.0.0.0/8", "11.0.0.0/8", "12.0.0.0/8", last}}}
			})
		}
		Expect(shown(ranges("13.0.0.0/8"), ranges("0.0.0.0/1"), redirects)).To(ContainElements("+  source 0.0.0.0/1   allowed", "-  source 13.0.0.0/8  allowed"))
		trusting := port(func(p *api.ServicePort) { p.ProxyProtocol = &api.ProxyProtocol{From: []string{"192.0.2.0/24"}} })
		Expect(shown(asIs, trusting, redirects)).To(ContainElement("+  PROXY from 192.0.2.0/24  accepted"))
		other := port(func(p *api.ServicePort) { p.Protocol = "SCTP" })
		Expect(shown(asIs, other, redirects)).To(ContainElements("~  protocol  SCTP", "was: TCP"))
	})
	It("shows the topology key in effect", func() {
		near := port(func(p *api.ServicePort) { p.Topology = &api.Topology{Keys: []string{"zone"}, Key: "zone", Value: "a"} })
		Expect(shown(asIs, near, redirects)).To(ContainElement("+  topology  zone=a"))
	})
	It("shows changed settings and weights", func() {
		other := port(func(p *api.ServicePort) {
			p.Endpoints[0].Weight, p.Policies.AffinitySeconds, p.Sees = 3, 10800, sees(portal.SourceConfigured)
			p.Settings = map[string]string{"scheduler": "wlc", "probe": "tcp", "drain-timeout": "5m"}
		})
		Expect(shown(asIs, other, redirects)).To(ContainElements(
			"~  10.1.0.7:80      for all clients, on n1, weight 3",
			"~  scheduler        wlc", "was: rr",
			"+  probe            tcp",
			"+  sessionAffinity  ClientIP for 3h",
			"+  client address   node",
			"+  drain-timeout    5m"))
	})
	It("describes VIPs in the portal's terms", func() {
		none := port(func(p *api.ServicePort) { p.Endpoints = nil })
		Expect(shown(nil, none, redirects)).To(ContainElement("+  NodePort 30080           rejected: no endpoint"))
		Expect(shown(nil, none, portal.Traits{Local: true})).To(ContainElement("+  NodePort 30080           not listening: no endpoint"))
		Expect(shown(nil, asIs, portal.Traits{Local: true})).To(ContainElement("+  NodePort 30080           usher listens there"))
		Expect(shown(nil, asIs, portal.Traits{})).To(ContainElement("+  NodePort 30080           usher listens elsewhere, on loopback"))
	})
})
