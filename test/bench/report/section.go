package report

import (
	"slices"
	"strings"
)

// section shows one figure on the page: its text, its peers, and its columns.
type section struct {
	name        string // of the plot file
	figure      string
	title, text string
	of          func(peer string) bool
	columns     []column
}

// column is a quantity with its heading. Values are shown divided by scale.
type column struct {
	quantity Quantity
	heading  string
	scale    float64
	against  []string // base peers: a ratio to each is shown next to the value
}

// like stands in column.against and in target.to for HAProxy with the same kind of address translation as the portal.
const like = "like"

// against returns the name of the peer that a peer is compared with.
func against(base, peer string) string {
	if base != like {
		return base
	}
	_, portal, _ := strings.Cut(peer, "-")
	return "haproxy-" + portal
}

// main is the column of a section's plot and first ratios: its first column.
func (s section) main() column { return s.columns[0] }

// peers returns the peers to show: none if all of them are in the figure's main section.
func (s section) peers(r Results) []string {
	peers := slices.DeleteFunc(r.peers(s.figure), func(p string) bool { return !s.of(p) })
	if s.name != s.figure && !slices.ContainsFunc(peers, func(p string) bool { return !untranslated(p) }) {
		return nil
	}
	return peers
}

// Filters of peers by how clients reach them.
func all(string) bool { return true }

// translated selects usher with the portals for which the kernel translates addresses.
func translated(peer string) bool { return peer == "usher-nftables" || peer == "usher-iptables" }

// behind selects other proxies with the kernel's translation in front of them.
func behind(peer string) bool { return peer == "haproxy-nftables" || peer == "haproxy-iptables" }

func untranslated(peer string) bool { return !translated(peer) && !behind(peer) }

func throughNetfilter(peer string) bool {
	return translated(peer) || behind(peer) || peer == "dnat" || peer == "haproxy"
}

func plain(q Quantity, heading string) column { return column{q, heading, 1, nil} }

// exchanges are the columns of a figure that measures exchanges.
func exchanges(cpu string, bases ...string) []column {
	return []column{
		{Rate, "per second", 1, bases}, plain(P50, "p50, µs"), {P99, "p99, µs", 1, bases[:1]}, {P999, "p99.9, µs", 1, bases[:1]},
		plain(CPU, "CPU, s per "+cpu), plain(Errors, "failed"), plain(Lost, "lost"),
	}
}

var bulk = []column{{Gbits, "Gbit/s", 1, []string{"haproxy", "dnat", ceiling}}, plain(CPU, "CPU, s per 100 GB")}

// duringBulk are the columns of a figure that measures requests during bulk.
var duringBulk = []column{{Rate, "requests per second", 1, []string{"haproxy"}}, plain(P50, "p50, µs"), {P99, "p99, µs", 1, []string{"haproxy"}},
	{P999, "p99.9, µs", 1, []string{"haproxy"}}, {Gbits, "bulk, Gbit/s", 1, []string{"haproxy"}}}

// sections are the sections of the page, in order.
var sections = []section{
	{"crr", "crr", "New connections", "64 clients, each: connect, send 64 bytes, read 64 bytes, close, again.", untranslated, exchanges("100,000", "haproxy", ceiling)},
	{"crr-netfilter", "crr", "New connections through netfilter", "The same through the portals with address translation in the kernel, compared with HAProxy behind such a rule ([configurations](#configurations)).",
		throughNetfilter, exchanges("100,000", like, "haproxy")},
	{"rr1", "rr1", "Requests on one connection", "One connection that stays open: send 64 bytes, read 64 bytes, again.", all, exchanges("1,000,000", "haproxy", ceiling)},
	{"rr64", "rr64", "Requests on 64 connections", "The same on 64 connections at once.", untranslated, exchanges("1,000,000", "haproxy", ceiling)},
	{"rr64-netfilter", "rr64", "Requests on 64 connections through netfilter", "The same through the portals with address translation in the kernel.",
		throughNetfilter, exchanges("1,000,000", like, "haproxy")},
	open("crr-at-30", "New connections at 30%", "64 clients make new connections, as above, at a constant rate: 30% of HAProxy's rate in the first round, for all peers. Time counts from the moment when a connection is due, even if no client is free."),
	open("crr-at-60", "New connections at 60%", "The same at 60%."),
	open("crr-at-80", "New connections at 80%", "The same at 80%."),
	open("rr64-at-30", "Requests on 64 connections at 30%", "Requests at a constant rate, 30% of HAProxy's, on 64 connections in turn."),
	open("rr64-at-60", "Requests on 64 connections at 60%", "The same at 60%."),
	open("rr64-at-80", "Requests on 64 connections at 80%", "The same at 80%."),
	open("crr-busy", "New connections on a busy node", "New connections at 10% of HAProxy's rate, with two processes that compute without end."),
	open("rr64-busy", "Requests on a busy node", "Requests at 10% of HAProxy's rate, with two processes that compute without end."),
	{"stream1", "stream1", "Bulk, one connection", "Bytes at full speed, in one direction, to an endpoint that reads them.", all, bulk},
	{"stream16", "stream16", "Bulk, 16 connections", "The same on 16 connections at once.", all, bulk},
	{"mixed", "mixed", "Short requests during bulk", "64 connections with requests of 64 bytes, while 16 connections with bulk run through the same proxy.", all, duringBulk},
	{"mixed-at", "mixed-at", "Short requests during bulk at a constant rate", "The same, while the 16 connections send 4 Gbit/s together.", all, duringBulk},
	{"udp1", "udp1", "UDP, one datagram in flight", "16 clients, each: send 64 bytes, wait for them to come back, again. HAProxy does not support UDP.", all, exchanges("1,000,000", "nginx", ceiling)},
	{"udp4", "udp4", "UDP, four datagrams in flight", "The same with four datagrams of each client in flight at any time.", all, exchanges("1,000,000", "nginx", ceiling)},
	{"idle", "idle", "Idle connections", "3,000 connections that have exchanged one byte. Per connection: memory and descriptors of the proxy, " +
		"and the decrease of the system's available memory. The last includes the sockets of client and endpoint, which *direct* shows alone. Differences below about 10 kB, and negative ones, are noise.", all,
		[]column{{Resident, "resident, bytes", 1, []string{"haproxy"}}, plain(Descriptors, "descriptors"), {System, "system, kB", 1000, []string{"haproxy"}}}},
	{"churn", "churn", "Opened and closed", "10,000 connections opened and closed (2,500 at once), ten times. Resident memory and descriptors of the proxy at the start, after the first ten thousand, and at the end.", all,
		[]column{{ResidentEnd, "resident at the end, MiB", 1 << 20, nil}, {ResidentFirst, "after the first cycle", 1 << 20, nil}, {ResidentStart, "at the start", 1 << 20, nil},
			plain(DescriptorsEnd, "descriptors at the end"), plain(DescriptorsStart, "at the start")}},
	services("services10", "10 Services", "Services with ten endpoints each, in one manifest. Start: until a client of the last VIP gets an answer, with the resident memory then. "+
		"Change: from a new file with one more Service until a client is connected to its VIP. The last columns compare new connections to the last and the first VIP."),
	services("services1000", "1,000 Services", "The same with 1,000."),
	services("services10000", "10,000 Services", "The same with 10,000."),
	{Cluster, Cluster, "10,000 Services of a cluster", "The same number, from an API server, compared with kube-proxy of Kubernetes 1.36 on the same node. Start: until a client of the node gets an answer. " +
		"Resident memory and CPU time (including programs that it ran) are taken at rest. At rest: CPU time while nothing happens. " +
		"Change: from writing a new Service's EndpointSlice until a client gets an answer, the median of five.", all,
		[]column{{Start, "start, s", 1, []string{"kube-proxy-nftables"}}, {Memory, "resident, MiB", 1 << 20, []string{"kube-proxy-nftables"}},
			{CPU, "CPU, s", 1, []string{"kube-proxy-nftables"}}, plain(Rest, "at rest, % of a core"), plain(Change, "change, ms")}},
}

// open returns the section of a load at a constant rate, with its latencies.
func open(figure, title, text string) section {
	return section{figure, figure, title, text, all, []column{{P50, "p50, µs", 1, []string{"haproxy"}}, {P99, "p99, µs", 1, []string{"haproxy"}}, {P999, "p99.9, µs", 1, []string{"haproxy"}},
		plain(Rate, "per second"), plain(CPU, "CPU, s per 100,000"), plain(Errors, "failed")}}
}

func services(figure, title, text string) section {
	return section{figure, figure, title, text, all, []column{plain(Start, "start, s"), {Memory, "resident, MiB", 1 << 20, nil}, plain(Change, "change, ms"),
		plain(FirstRate, "new connections/s through the first VIP"), plain(LastRate, "through the last"), plain(LastFirst, "last / first")}}
}

// titles are the display names of the peers.
var titles = map[string]string{
	"direct":              "direct",
	ceiling:               "*the ceiling*",
	"dnat":                "kernel DNAT",
	"haproxy":             "HAProxy",
	"haproxy-2":           "HAProxy, another version",
	"haproxy-nftables":    "HAProxy behind nftables",
	"haproxy-iptables":    "HAProxy behind iptables",
	like:                  "HAProxy behind the same rules",
	"nginx":               "nginx",
	"kube-proxy-nftables": "kube-proxy, nftables",
	"kube-proxy-iptables": "kube-proxy, iptables",
	"usher-none":          "usher, no portal",
	"usher-nftables":      "usher, nftables",
	"usher-iptables":      "usher, iptables",
	"usher-address":       "usher, address",
}

func title(peer string) string {
	if t, ok := titles[peer]; ok {
		return t
	}
	return peer
}
