package report

import (
	"fmt"
	"slices"
	"strings"
)

// target is a goal for usher: a quantity relative to another peer's or to another quantity of usher's, or an absolute
// value.
type target struct {
	figure   string
	quantity Quantity
	to       string   // peer, or like
	own      Quantity // of the same measurement
	least    bool     // at least bound; otherwise at most
	bound    float64
	unit     float64                 // unit of bound; 0 means 1
	of       func(usher string) bool // peers to which the target applies; nil means all
	text     string
}

// targets are all targets, in the order of the page.
var targets = []target{
	{figure: "crr", quantity: Rate, to: "haproxy", least: true, bound: 1.10, of: untranslated, text: "new connections a second"},
	{figure: "crr", quantity: Rate, to: ceiling, least: true, bound: 0.95, of: untranslated, text: "new connections a second"},
	{figure: "crr", quantity: Rate, to: like, least: true, bound: 0.9, of: translated, text: "new connections a second"},
	{figure: "crr", quantity: P99, to: "haproxy", bound: 1, of: untranslated, text: "p99 of a new connection"},
	{figure: "rr64", quantity: Rate, to: "haproxy", least: true, bound: 1.12, of: untranslated, text: "requests a second, 64 connections"},
	{figure: "rr64", quantity: Rate, to: like, least: true, bound: 0.9, of: translated, text: "requests a second, 64 connections"},
	{figure: "rr64", quantity: P99, to: "haproxy", bound: 0.9, of: untranslated, text: "p99 of a request, 64 connections"},
	{figure: "crr-at-30", quantity: P99, to: "haproxy", bound: 1, text: "p99 of a new connection at 30 %"},
	{figure: "crr-at-60", quantity: P99, to: "haproxy", bound: 1, text: "p99 of a new connection at 60 %"},
	{figure: "crr-at-80", quantity: P99, to: "haproxy", bound: 1, text: "p99 of a new connection at 80 %"},
	{figure: "rr64-at-30", quantity: P99, to: "haproxy", bound: 1, text: "p99 of a request at 30 %"},
	{figure: "rr64-at-60", quantity: P99, to: "haproxy", bound: 1, text: "p99 of a request at 60 %"},
	{figure: "rr64-at-80", quantity: P99, to: "haproxy", bound: 1, text: "p99 of a request at 80 %"},
	{figure: "crr-busy", quantity: P50, to: "haproxy", bound: 1, text: "median of a new connection on a busy node"},
	{figure: "crr-busy", quantity: P99, to: "haproxy", bound: 1, text: "p99 of a new connection on a busy node"},
	{figure: "rr64-busy", quantity: P50, to: "haproxy", bound: 1, text: "median of a request on a busy node"},
	{figure: "rr64-busy", quantity: P99, to: "haproxy", bound: 1, text: "p99 of a request on a busy node"},
	{figure: "rr1", quantity: P50, to: "haproxy", bound: 1, text: "median of a request, one connection"},
	{figure: "rr1", quantity: P99, to: "haproxy", bound: 1, text: "p99 of a request, one connection"},
	{figure: "stream1", quantity: Gbits, to: "haproxy", least: true, bound: 2.5, text: "bulk, one connection"},
	{figure: "stream16", quantity: Gbits, to: "haproxy", least: true, bound: 2, text: "bulk, 16 connections"},
	{figure: "stream1", quantity: Gbits, to: "dnat", least: true, bound: 0.75, text: "bulk, one connection"},
	{figure: "stream16", quantity: Gbits, to: "dnat", least: true, bound: 0.7, text: "bulk, 16 connections"},
	{figure: "mixed", quantity: P99, to: "haproxy", bound: 0.8, text: "p99 of a request, 64 connections during bulk on 16"},
	{figure: "mixed", quantity: Gbits, to: "haproxy", least: true, bound: 1.5, text: "bulk, 16 connections during requests on 64"},
	{figure: "udp1", quantity: Rate, to: "nginx", least: true, bound: 1.10, text: "datagrams a second, one in flight"},
	{figure: "udp1", quantity: P99, to: "nginx", bound: 0.8, text: "p99 of a datagram, one in flight"},
	{figure: "udp4", quantity: Rate, to: "nginx", least: true, bound: 1.35, text: "datagrams a second, four in flight"},
	{figure: "udp4", quantity: P99, to: "nginx", bound: 0.8, text: "p99 of a datagram, four in flight"},
	{figure: "idle", quantity: Resident, bound: 600, text: "resident bytes for an idle connection"},
	{figure: "idle", quantity: Descriptors, bound: 2, text: "descriptors for an idle connection"},
	{figure: "idle", quantity: System, to: "haproxy", bound: 1, text: "system memory for an idle connection"},
	{figure: "crr", quantity: CPU, to: "haproxy", bound: 1, text: "CPU time for a new connection"},
	{figure: "rr64", quantity: CPU, to: "haproxy", bound: 1, text: "CPU time for a request"},
	{figure: "stream1", quantity: CPU, to: "haproxy", bound: 1, text: "CPU time for a GB, one connection"},
	{figure: "stream16", quantity: CPU, to: "haproxy", bound: 1, text: "CPU time for a GB, 16 connections"},
	{figure: "churn", quantity: DescriptorsEnd, own: DescriptorsStart, bound: 1, text: "descriptors after 100,000 connections / before"},
	{figure: "churn", quantity: ResidentEnd, own: ResidentFirst, bound: 1.1, text: "resident memory after 100,000 connections / after 10,000"},
	{figure: "services10000", quantity: Start, of: only("usher-nftables"), bound: 2, text: "seconds to start, 10,000 Services from files"},
	{figure: "services10000", quantity: Start, of: only("usher-iptables", "usher-address"), bound: 6, text: "seconds to start, 10,000 Services from files"},
	{figure: "services10000", quantity: Change, bound: 50, text: "ms until a changed file takes effect, 10,000 Services"},
	{figure: "services10000", quantity: Memory, bound: 250, unit: 1 << 20, text: "resident MiB, 10,000 Services from files"},
	{figure: Cluster, quantity: Start, to: "kube-proxy-nftables", bound: 1, text: "time to start, 10,000 Services of a cluster"},
	{figure: Cluster, quantity: Memory, to: "kube-proxy-nftables", bound: 1, text: "resident memory, 10,000 Services of a cluster"},
	{figure: Cluster, quantity: CPU, to: "kube-proxy-nftables", bound: 1, text: "CPU time to start, 10,000 Services of a cluster"},
	{figure: Cluster, quantity: Change, bound: 10, text: "ms until a change takes effect, 10,000 Services of a cluster"},
	{figure: "services10000", quantity: LastFirst, least: true, bound: 0.9, text: "new connections, the last of 10,000 portals / the first"},
}

// only returns a filter for the named peers.
func only(ushers ...string) func(string) bool {
	return func(peer string) bool { return slices.Contains(ushers, peer) }
}

// measured returns the value to compare with the target, for one usher peer.
func (t target) measured(r Results, peer string) Spread {
	switch {
	case !t.about(peer):
		return Spread{}
	case t.to != "":
		return r.Ratio(t.figure, peer, against(t.to, peer), t.quantity)
	case t.own != "":
		return r.OwnRatio(t.figure, peer, t.quantity, t.own)
	}
	s := r.Over(t.figure, peer, t.quantity)
	if t.unit != 0 {
		s.Median, s.Min, s.Max = s.Median/t.unit, s.Min/t.unit, s.Max/t.unit
	}
	return s
}

// about reports whether the target applies to peer.
func (t target) about(peer string) bool { return t.of == nil || t.of(peer) }

// met reports whether the median reaches the target, rounded to the two digits shown.
func (t target) met(s Spread) bool {
	const half = 0.005
	if t.least {
		return s.Median > t.bound-half
	}
	return s.Median < t.bound+half
}

// wanted returns "≥ 1.40 × nginx".
func (t target) wanted() string {
	sign := "≤"
	if t.least {
		sign = "≥"
	}
	if t.to == "" {
		return fmt.Sprintf("%s %s", sign, number(t.bound))
	}
	return fmt.Sprintf("%s %.2f × %s", sign, t.bound, title(t.to))
}

// targetTable shows for every target and every usher peer whether it was met.
func (r Results) targetTable() string {
	var ushers []string
	for _, p := range r.peers("") {
		if strings.HasPrefix(p, "usher-") {
			ushers = append(ushers, p)
		}
	}
	t := table{head: []string{"measure", "target"}}
	for _, u := range ushers {
		t.head = append(t.head, title(u))
	}
	for _, target := range targets {
		row := []string{target.text, target.wanted()}
		there := false
		for _, u := range ushers {
			s := target.measured(r, u)
			row = append(row, target.verdict(s, target.about(u) && r.failed(target.figure, u)))
			there = there || row[len(row)-1] != ""
		}
		if there {
			t.rows = append(t.rows, row)
		}
	}
	return t.String()
}

// verdict returns the result as text; failed means that a measurement was tried and failed.
func (t target) verdict(s Spread, failed bool) string {
	switch {
	case s.Rounds == 0 && failed:
		return "failed, **not met**"
	case s.Rounds == 0:
		return ""
	case t.met(s):
		return number(s.Median) + " met"
	}
	return number(s.Median) + " **not met**"
}
