package report

import (
	"fmt"
	"slices"
	"strings"
)

// Listing is a configuration shown on the page.
type Listing struct{ Title, Text string }

// Page returns the page in Markdown. Plots are at plots/NAME.svg.
func Page(run Run, plots string, listings []Listing) string {
	var b strings.Builder
	b.WriteString(introduction(run))
	drawn := Plots(run.Results)
	run.Results = run.Results.withCeiling()
	b.WriteString("\n## Targets\n\nMedians of the rounds' ratios, or of the figure itself.\n\n")
	b.WriteString(run.Results.targetTable())
	b.WriteString(profiles)
	for _, s := range sections {
		peers := s.peers(run.Results)
		if len(peers) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s %s.\n\n", s.title, s.text, run.Results.rounds(s.figure))
		if drawn[s.name] != "" {
			fmt.Fprintf(&b, "![%s](%s/%s.svg)\n\n", s.title, plots, s.name)
		}
		b.WriteString(run.Results.sectionTable(s, peers))
	}
	b.WriteString(run.Results.failures())
	b.WriteString("\n## Configurations\n")
	for _, l := range listings {
		fmt.Fprintf(&b, "\n%s:\n\n```\n%s```\n", l.Title, strings.TrimRight(l.Text, "\n")+"\n")
	}
	return b.String()
}

// profiles describes what limits the figures. It was recorded with perf on the machine of November 2026 (perf record -e
// cpu-clock -g -p PID), and is not part of a run.
const profiles = `
## Where the time goes

Profiles of the proxy's process (perf record -e cpu-clock -g), in November 2026, of an older build, whose loops parked once per millisecond:

| Load | in the kernel | most of it |
|---|---|---|
| new connections | 89% | close 21%, sendto 20%, connect 12%, shutdown 8%, accept 4%, socket 4%, epoll_ctl 3%, recvfrom 3%, epoll_wait 2% |
| requests, 64 connections | 95% | sendto 67%, recvfrom 10%, epoll_wait 4% |
| bulk, 16 connections | 94% | splice 81% |
| UDP, one datagram in flight | 93% | sending 60%, epoll_wait 9%, receiving 10% |

On loopback, the sending process also does the kernel's receive processing, so these figures contain both ends. A connection takes
16 system calls in usher (HAProxy: 18), and one more if the endpoint's port is in the range of local ports. Any proxy needs 14
of them: accept, socket, connect, two epoll_ctl, four reads, two writes, shutdown, two closes. One saves a packet (TCP_QUICKACK),
and one preserves urgent data (SO_OOBINLINE). A connection takes one round of the loop for each of four events. Connecting takes no round, because the first data is written directly after connect.

- **New connections.** The kernel uses about 90% of the CPU time. Other proxies cause the same work.
  - Adopted: one read instead of a poll and a read; keepalive only for connections that stay open
  - Adopted: no TCP_NODELAY for one write; the handshake's last ACK with the data; accepting on several loops
  - Adopted: no timer and no goroutine for a connection; no getsockname or getsockopt that an endpoint's usual port needs
  - Adopted: polling for a millisecond before the loop blocks in its own epoll instance (most of the difference in p99)
  - Worse: blocking at once
  - Worse: parking the goroutine in Go's poller, with the loop's epoll descriptor nested (at 30% of the rate, the median request took 1.4 times as long)
  - Worse: sched_yield before waiting (p99 of requests on 64 connections 25% longer)
- **New connections through netfilter.** The kernel also tracks and translates each connection, which costs about a quarter
  of the rate of *direct* (see kernel DNAT). HAProxy and nginx listen on the address themselves, as usher does with the address portal.
- **No tracking of usher's connections** (notrack by the endpoint's address, in raw output and prerouting, both ways).
  It was measured with nftables, in six rounds of 0.6 s. New connections had 1.09 (0.86 to 1.53) of the rate, 64 concurrent requests
  1.01 (0.76 to 1.50), UDP 1.15 (0.86 to 1.45). CPU time was 0.96, 1.01 and 0.94. Rounds differ by as much.
  Rules of the node that match a connection's state would see usher's as untracked. Endpoints could not see
  the client's address, which needs a connection mark. usher does not offer it. The cost of a bridge with
  bridge-nf-call-iptables was not measured.
- **An nftables portal without tracking and translation** (notrack, tproxy, a route chain for the node's own clients, no
  conntrack entries). In five rounds it had 0.84 of *address* in new connections, 0.85 with 64 concurrent requests, and
  0.80 over UDP. *nftables* had 0.74, 0.76 and 0.82. With clients and endpoint each behind a veth, in 18 rounds: 0.82,
  0.92, 0.87, and *nftables* 0.84, 0.90, 0.92. Each packet still needs a socket lookup, map lookups and
  routing rules. It was not kept: *address* needs no netfilter.
- **UDP with one datagram in flight.** In every proxy each datagram costs its own receive and send calls. A client
  that waits for its answer sends only one, so there is nothing to batch. With four in flight usher sends them together.
- **A change among 10,000 Services** begins when the file is written. usher updates only the affected parts.
  It reads the file once no manifest has changed for 25 ms; the figures in the tables include this delay.
  In one YAML file of 10,000 Services, usher finds the changed one in 28 ms. The rest
  takes 5 ms; with iptables 30 to 60 ms, because iptables-restore reads all rules first.

Tried for bulk data:

- pipes of 64 KiB, 256 KiB, 1 MiB (adopted) and 4 MiB
- turns of 256 KiB to 4 MiB
- socket buffers of 256 KiB and 1 MiB

Smaller values are slower, larger ones make no difference. Also adopted: splice(2) without notifying Go's scheduler. The
notification took a seventh of the CPU time.

The machine's default congestion control is bbr. It paces by timers, which dominates measurements on loopback: bulk
rates of all proxies are less than half. With bbr (-congestion bbr; six rounds of the same day) usher without a portal has 1.11 times
HAProxy's new connections. Its bulk rates on one and on 16 connections are 1.48 and 1.37 times HAProxy's, and 0.63 and 0.60 times kernel
DNAT's.
`

func introduction(run Run) string {
	m := run.Machine
	return fmt.Sprintf(`# Benchmarks

usher compared with other proxies on the same machine. %[1]smake bench%[1]s writes this page (%[1]smake bench QUICK=1%[1]s takes three minutes)
with the code in [test/bench](../test/bench). %[1]smake bench CLUSTER=1%[1]s also compares 10,000 Services of a cluster with kube-proxy.

Other virtual machines share the hardware, so absolute figures vary; ratios of measurements within the same seconds vary less. In every round, and for
every figure, the proxies alternate, and each round gives a ratio. The tables have the median of the rounds, and for the most important
ratios the least and the greatest in brackets. Compare the ratios. If the brackets are far apart, ignore the second digit.

Ratios vary between runs and CPUs. Compare the tables below with a run on an AMD EPYC with 2 cores, on 2026-12-01 (usher cc0db6bf, 7 rounds of 1 s),
with HAProxy 2.6.12 (Debian 12) and 3.4.7 (Debian experimental). The table has the medians of the ratios. In brackets: the ratio of p99.

| Ratio | no portal ÷ HAProxy 2.6 | address ÷ HAProxy 2.6 | no portal ÷ HAProxy 3.4 | address ÷ HAProxy 3.4 |
|---|---:|---:|---:|---:|
| new connections | 1.00 (1.02) | 1.10 (1.04) | 1.07 (1.11) | 1.07 (1.19) |
| requests on one connection | 1.05 (1.08) | 1.00 (1.29) | 1.19 (0.93) | 1.19 (1.01) |
| requests on 64 connections | 0.96 (0.90) | 1.04 (0.91) | 1.05 (0.91) | 1.11 (0.99) |
| p99 of new connections at 30%%, 60%% and 80%% of HAProxy 2.6's rate | 1.25, 1.28, 1.30 | 0.98, 0.82, 0.64 | 1.06, 1.01, 0.76 | 0.75, 0.77, 0.62 |
| p99 of requests at 30%%, 60%% and 80%% of HAProxy 2.6's rate | 0.64, 0.96, 0.76 | 0.51, 1.00, 1.11 | 0.93, 0.43, 0.33 | 0.93, 0.57, 0.67 |
| p99 on a busy node: new connections, requests | 0.84, 0.96 | 0.99, 1.09 | 0.71, 0.94 | 0.87, 1.08 |
| bulk on one connection | 2.85 | 3.06 | 3.07 | 3.05 |
| bulk on 16 connections | 1.73 | 1.55 | 1.41 | 1.33 |
| requests during bulk on 16 connections | 2.49 (0.94) | 2.89 (0.75) | 0.65 (3.40) | 0.85 (2.35) |
| the bulk during these requests | 1.20 | 1.15 | 2.26 | 2.20 |
| requests during bulk at 4 Gbit/s | 1.08 (1.07) | 0.99 (1.07) | 1.05 (1.20) | 1.04 (1.17) |

Requests during bulk at full speed take longer with usher than with HAProxy 3.4, because usher moves more than twice the bulk meanwhile. The clients
and the endpoint then use two thirds of the CPU time (with HAProxy 3.4 half), and their threads wait for a CPU (up to 10 ms, instead of 2 ms; perf
sched). At the same bulk rate the difference is small.

In the same run, UDP with one datagram in flight had 1.03 (no portal) and 1.06 (address) times nginx's rate, with a p99 of 0.89 and 0.91 times nginx's;
with four in flight, 1.42 and 1.43 times the rate, and 0.57 and 0.53 times the p99.

On another AMD EPYC of the same day, whose host was busier, usher (7f4746a1) with the portal *address* was slower: it had 0.90 (p99: 1.31) times the new connections
of HAProxy 2.6 and 1.02 (0.97) times the requests on 64 connections; p99 at 30%% was 2.81 (new connections) and 1.38 (requests) times HAProxy's. But
bulk on one connection was 5.72 times HAProxy's; on 16, 2.66 times.

Alternating rounds on the same day compared builds of usher. A new connection took 14%% more CPU time than in a build of 2026-11-22 (390e36f). About half
of that was system calls that are now removed; one more (SO_OOBINLINE) stays, because it preserves urgent data.

*The ceiling* is half of *direct* in each round, because a proxy has two hops. A proxy can exceed it by batching, or by not
copying bulk data. On one connection a proxy can also exceed it, because *direct* waits most of the time there.

The tables have a percentile only if ten exchanges of the round exceed it: p99 needs 1,000 exchanges, p99.9 needs 10,000.

- %[2]s; %[3]d cores, %[4]s, %.1[5]f GiB of memory; %[6]s
- %[7]s
- TCP congestion control: %[9]s
- each load runs for %[8]s s after 0.3 s of warming up

All use the same path: in a separate network namespace for each measurement, clients
connect on loopback to 10.96.0.10, and the endpoint listens on 10.244.0.11. HAProxy
and nginx listen on 10.96.0.10 themselves. *HAProxy behind nftables* or *iptables* listens elsewhere,
and a rule redirects to it, as usher's portals do. Kernel DNAT rewrites 10.96.0.10 to the endpoint's
address, as kube-proxy's rules do. It is the limit for a proxy outside the kernel. Clients reach usher
through its portals, or without one on a separate port. *direct* is
no proxy: it shows that clients and endpoint are not the bottleneck. Clients and endpoint are separate processes with one
epoll loop per core (the endpoint has the same number of further loops for bulk). They share the cores with the proxy.
CPU time is the user and system time of the proxy's processes, including the kernel's work within them. DNAT has no
process, so its CPU time is unknown.
`, "`", m.System, m.Cores, m.CPU, float64(m.Memory)/(1<<30), m.Date, strings.Join(m.Programs, "\n- "), number(m.Seconds), m.congestion())
}

// congestion describes the TCP congestion control and the reason for it.
func (m Machine) congestion() string {
	why := "Linux's default; -congestion sets another"
	if m.Note != "" {
		why = m.Note
	}
	return fmt.Sprintf("%s (%s)", m.Congestion, why)
}

// sectionTable has a row for each peer. The values in brackets are the minimum and maximum: of the most important
// ratios, or, if there are no ratios, of the figures.
func (r Results) sectionTable(s section, peers []string) string {
	t := table{head: []string{""}}
	cells := map[string][]string{}
	add := func(heading string, cell func(peer string) string) {
		t.head = append(t.head, heading)
		for _, p := range peers {
			cells[p] = append(cells[p], cell(p))
		}
	}
	compared := slices.ContainsFunc(s.columns, func(c column) bool { return c.against != nil })
	for _, c := range s.columns {
		if !r.has(s.figure, c.quantity) {
			continue
		}
		add(c.heading, func(p string) string { return cell(r.Over(s.figure, p, c.quantity), c.scale, !compared) })
		for i, base := range c.against {
			// Without a measurement of the base there is no comparison.
			if base != like && !slices.Contains(peers, base) {
				continue
			}
			add("× "+title(base), func(p string) string {
				to := against(base, p)
				return ratio(r.Ratio(s.figure, p, to, c.quantity), to == p, i == 0 && c.quantity != P999)
			})
		}
	}
	for _, p := range peers {
		t.rows = append(t.rows, append([]string{title(p)}, cells[p]...))
	}
	return t.String()
}

// has reports whether there are values of a quantity to show.
func (r Results) has(figure string, q Quantity) bool {
	if q == Errors || q == Lost {
		return r.greatest(figure, q) > 0
	}
	return slices.ContainsFunc(r, func(m Result) bool { _, ok := m.Values[q]; return ok && m.Figure == figure })
}

// cell returns "10,600", or "10,600 (9,800–11,000)".
func cell(s Spread, scale float64, spread bool) string {
	if s.Rounds == 0 {
		return ""
	}
	median := number(s.Median / scale)
	if !spread || s.Rounds == 1 || s.Min == s.Max {
		return median
	}
	return fmt.Sprintf("%s (%s–%s)", median, number(s.Min/scale), number(s.Max/scale))
}

// failures lists the measurements that failed.
func (r Results) failures() string {
	var b strings.Builder
	for _, m := range r {
		if m.Failed != "" {
			fmt.Fprintf(&b, "- %s, %s, round %d: `%s`\n", m.Figure, title(m.Peer), m.Round, strings.ReplaceAll(strings.ReplaceAll(m.Failed, "`", "'"), "\n", " "))
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "\n## What failed\n\n" + b.String()
}
