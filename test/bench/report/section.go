package report

// section is one figure on the page: what it is, and its columns.
type section struct {
	figure, title, text string
	columns             []column
}

// column is a quantity with its heading. It is shown divided by scale.
type column struct {
	quantity Quantity
	heading  string
	scale    float64
}

// main is what a section's plot and its ratios are about: its first column.
func (s section) main() column { return s.columns[0] }

func micros(heading string, q Quantity) column { return column{q, heading + ", µs", 1} }

// sections are the page, in order.
var sections = []section{
	{"crr", "New connections", "64 clients, each: connect, send 64 bytes, read 64 bytes, close, again.",
		[]column{{Rate, "per second", 1}, micros("p50", P50), micros("p99", P99), {CPU, "CPU, s per 100,000", 1}, {Errors, "failed", 1}}},
	{"rr1", "Requests on one connection", "One connection that stays: send 64 bytes, read 64 bytes, again.",
		[]column{{Rate, "per second", 1}, micros("p50", P50), micros("p99", P99), {CPU, "CPU, s per 1,000,000", 1}}},
	{"rr64", "Requests on 64 connections", "The same on 64 connections at once.",
		[]column{{Rate, "per second", 1}, micros("p50", P50), micros("p99", P99), {CPU, "CPU, s per 1,000,000", 1}}},
	{"stream1", "Bulk, one connection", "Bytes as fast as they go, in one direction, to an endpoint that reads them.",
		[]column{{Gbits, "Gbit/s", 1}, {CPU, "CPU, s per 100 GB", 1}}},
	{"stream16", "Bulk, 16 connections", "The same on 16 connections at once.",
		[]column{{Gbits, "Gbit/s", 1}, {CPU, "CPU, s per 100 GB", 1}}},
	{"mixed", "Short requests beside bulk", "64 connections with requests as above while 16 connections with bulk run through the same proxy.",
		[]column{{Rate, "requests per second", 1}, micros("p50", P50), micros("p99", P99), micros("p99.9", P999), {Gbits, "bulk, Gbit/s", 1}}},
	{"udp1", "UDP, one datagram under way", "16 clients, each: send 64 bytes, wait for them to come back, again. HAProxy has no UDP.",
		[]column{{Rate, "per second", 1}, micros("p50", P50), micros("p99", P99), {CPU, "CPU, s per 1,000,000", 1}, {Lost, "lost", 1}}},
	{"udp4", "UDP, four datagrams under way", "The same with four datagrams of each client under way at any time.",
		[]column{{Rate, "per second", 1}, micros("p50", P50), micros("p99", P99), {CPU, "CPU, s per 1,000,000", 1}, {Lost, "lost", 1}}},
	{"idle", "Idle connections", "3,000 connections that have exchanged one byte, for each of them: memory and descriptors of the proxy, " +
		"and what the system's available memory lost. The last includes the sockets of client and endpoint, which are what *direct* shows.",
		[]column{{Resident, "resident, bytes", 1}, {Descriptors, "descriptors", 1}, {System, "system, kB", 1000}}},
	{"churn", "Opened and closed", "10,000 connections opened and closed (2,500 at once), ten times: resident memory and descriptors of the proxy before the first, after the first ten thousand, and after the last.",
		[]column{{ResidentEnd, "resident at the end, MiB", 1 << 20}, {ResidentFirst, "after the first cycle", 1 << 20}, {ResidentStart, "at the start", 1 << 20},
			{DescriptorsEnd, "descriptors at the end", 1}, {DescriptorsStart, "at the start", 1}}},
	services("services10", "10 Services", "Services with ten endpoints each, in one manifest. From the start of usher until a client of the last VIP gets an answer; resident memory then; "+
		"the time from a new file with one more Service until a client is connected to its VIP; and new connections through the last portal against the first."),
	services("services1000", "1,000 Services", "The same with 1,000."),
	services("services10000", "10,000 Services", "The same with 10,000."),
}

func services(figure, title, text string) section {
	return section{figure, title, text, []column{{Start, "start, s", 1}, {Memory, "resident, MiB", 1 << 20}, {Change, "change, ms", 1},
		{FirstRate, "crr through the first", 1}, {LastRate, "through the last", 1}, {LastFirst, "last / first", 1}}}
}

// titles are the names that people know the peers by.
var titles = map[string]string{
	"direct":          "direct",
	"dnat":            "kernel DNAT",
	"haproxy":         "HAProxy",
	"nginx":           "nginx",
	"usher-none":      "usher, no portal",
	"usher-nftables":  "usher, nftables",
	"usher-iptables":  "usher, iptables",
	"usher-address":   "usher, address",
	"usher-namespace": "usher, address, own namespace",
}

func title(peer string) string {
	if t, ok := titles[peer]; ok {
		return t
	}
	return peer
}
