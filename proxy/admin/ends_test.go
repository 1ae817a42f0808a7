package admin_test

import (
	"context"
	"io"
	"net/http"
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
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/outcome"
)

// goldenEnds lists all ends in the order of the API: word, fault, meaning. Users' alerts, scripts and log queries
// contain the words, so they must not change.
var goldenEnds = []api.End{
	{Code: "client-closed", Fault: "none", Meaning: "both directions ended, the client's first"},
	{Code: "endpoint-closed", Fault: "none", Meaning: "both directions ended, the endpoint's first"},
	{Code: "client-reset", Fault: "client", Meaning: "the client reset the connection"},
	{Code: "endpoint-reset", Fault: "endpoint", Meaning: "the endpoint reset the connection; UDP: it had answered and now refuses"},
	{Code: "no-response", Fault: "none", Meaning: "not a failure: the client sent data and got no byte from the endpoint. The client reset the connection; or it closed its side and the endpoint did not within `--half-closed-timeout`; or the endpoint closed first, or the client was lost, although endpoints of the port respond to other clients"},
	{Code: "half-closed", Fault: "policy", Meaning: "no data moved for `--half-closed-timeout` after one direction was closed, or after one side closed and the other did not read the remaining data"},
	{Code: "no-endpoint", Fault: "endpoint", Meaning: "no usable endpoint"},
	{Code: "attempts-failed", Fault: "endpoint", Meaning: "every attempt failed"},
	{Code: "queue-timeout", Fault: "endpoint", Meaning: "no endpoint had a free slot within `--queue-timeout` or the Service's own timeout, or the queue was full"},
	{Code: "bypassed-portal", Fault: "client", Meaning: "the client connected directly to usher's port"},
	{Code: "source-denied", Fault: "policy", Meaning: "the client is not in `loadBalancerSourceRanges`"},
	{Code: "proxy-header-invalid", Fault: "client", Meaning: "the load balancer sent no PROXY protocol header, an invalid one, or did not complete it in time; see the error"},
	{Code: "limit", Fault: "node", Meaning: "too many connections, or the node is out of descriptors or memory; SCTP: a message was too large; UDP: usher ended the session that was idle longest for a newer one, or the first datagram's hop limit was exhausted"},
	{Code: "drained", Fault: "node", Meaning: "usher was stopped and `--drain-timeout` had passed; UDP sessions end as soon as usher is stopped"},
	{Code: "max-age", Fault: "policy", Meaning: "the connection reached `--max-connection-age`"},
	{Code: "idle", Fault: "none", Meaning: "no data for `--connection-idle-timeout`; UDP: no datagram in either direction for `--udp-idle-timeout`, or for 1 min before the first response"},
	{Code: "endpoint-drained", Fault: "policy", Meaning: "the endpoint had been removed or terminating for `--endpoint-drain-timeout`"},
	{Code: "endpoint-removed", Fault: "policy", Meaning: "UDP: the endpoint was removed or no longer serves"},
	{Code: "vip-removed", Fault: "policy", Meaning: "UDP: the Service, or the VIP that the client used, was removed"},
	{Code: "internal", Fault: "usher", Meaning: "internal error in usher; see the error"},
}

var _ = Describe("the ends of connections", func() {
	It("are listed by the API", func() {
		var list api.EndList
		Expect(newNode().get("/ends", &list)).To(Equal(http.StatusOK))
		Expect(list.Items).To(Equal(goldenEnds))
	})

	It("are documented", func() {
		page, err := os.ReadFile("../../docs/reference.md")
		Expect(err).NotTo(HaveOccurred())
		_, table, _ := strings.Cut(string(page), "| end | meaning |\n|---|---|\n")
		table, _, _ = strings.Cut(table, "\n\n")
		found := map[string]string{}
		for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| (.*) \\|$").FindAllStringSubmatch(table, -1) {
			found[row[1]] = row[2]
		}
		documented := map[string]string{}
		for _, e := range goldenEnds {
			documented[e.Code] = e.Meaning
		}
		Expect(found).To(Equal(documented))
	})

	It("have the same codes in connections, events and the access log", func() {
		n, at := newNode(), time.Now()
		log := logrus.New()
		log.SetOutput(io.Discard)
		lines := map[accesslog.Format]*strings.Builder{accesslog.JSON: {}, accesslog.Text: {}}
		ctx, stop := context.WithCancel(context.Background())
		var writing sync.WaitGroup
		for format, out := range lines {
			l, err := accesslog.New(n.proxy.Trace, accesslog.Options{Path: "-", Out: out, Format: format, Log: log})
			Expect(err).NotTo(HaveOccurred())
			writing.Go(func() { l.Run(ctx) })
		}
		endpoint := netip.MustParseAddrPort("10.1.0.8:80")
		for i, e := range goldenEnds {
			for id, established := range map[uint64]bool{uint64(i + 1): true, uint64(i + 101): false} {
				life := &conn.Record{ID: id, From: netip.MustParseAddrPort("192.0.2.2:48200"), To: netip.MustParseAddrPort("10.96.0.10:80"), Start: at.Add(-time.Second),
					Port: &conn.Port{ID: config.PortID{Namespace: "default", Service: "web"}, Protocol: config.TCP, Unlogged: !established, Observers: []conn.Observer{n.proxy.Trace}}}
				result, to := outcome.Result{Outcome: outcome.Named(e.Code)}, netip.AddrPort{}
				life.Accepted()
				if established {
					life.Attempted(at, conn.Attempt{Endpoint: endpoint})
					result.ToEndpoint, result.ToClient, to = 3, 4, endpoint
				}
				life.Closed(at, result, to)
			}
		}
		stop()
		writing.Wait()
		json, text := strings.Split(lines[accesslog.JSON].String(), "\n"), strings.Split(lines[accesslog.Text].String(), "\n")
		for i, e := range goldenEnds {
			Expect(json[i]).To(HaveSuffix(`,"bytesToEndpoint":3,"bytesToClient":4,"end":"` + e.Code + `"}`))
			Expect(text[i]).To(HaveSuffix(" 3 4 " + e.Code))

			var list api.ConnectionList
			Expect(n.get("/connections?end="+e.Code, &list)).To(Equal(http.StatusOK))
			Expect(list.Items).To(HaveLen(2))
			never, was := list.Items[0], list.Items[1]
			Expect([]any{was.End, was.BytesToEndpoint, was.BytesToClient, never.End}).To(Equal([]any{e.Code, int64(3), int64(4), e.Code}))
			Expect(was.Outcomes).To(Equal(outcomes(e.Fault == "endpoint", e.Code)), e.Code)
			Expect(never.Outcomes).To(Equal(outcomes(!slices.Contains([]string{"idle", "endpoint-removed", "vip-removed", "drained"}, e.Code), e.Code)), e.Code)

			events := n.subscribe("follow=false&history=true&kind=closed&outcome="+e.Code, "").events
			Expect(events).To(HaveLen(2))
			for _, event := range events {
				Expect(event.End).To(Equal(e.Code))
				Expect(event.Text).To(ContainSubstring(" closed after 1.0 s: " + e.Code))
			}
		}
		var list api.ConnectionList
		Expect(n.get("/connections?end=idle,limit", &list)).To(Equal(http.StatusOK))
		Expect(list.Items).To(HaveLen(2 * 2))
		Expect(n.fails("/connections?end=gone")).To(ContainSubstring("client-closed, endpoint-closed, client-reset"))
	})
})

// outcomes returns the outcomes that the API shows for a connection.
func outcomes(failed bool, end string) (all []string) {
	if failed {
		all = append(all, "failed")
	}
	if end == "no-response" {
		all = append(all, end)
	}
	if all == nil {
		all = []string{"ok"}
	}
	return all
}
