package report

import (
	"fmt"
	"slices"
	"strings"
)

// Listing is a configuration that the page shows.
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

// profiles says what bounds the figures. It was taken with perf on the machine of
// November 2026 (perf record -e cpu-clock -g -p PID), and does not come with a run.
const profiles = `
## Where the time goes, and what is out of reach

Profiles of the proxy's process (perf record -e cpu-clock -g), in November 2026, of a build whose loops are parked once in a millisecond:

| | in the kernel | most of it |
|---|---|---|
| new connections | 89 % | close 21 %, sendto 20 %, connect 12 %, shutdown 8 %, accept 4 %, socket 4 %, epoll_ctl 3 %, recvfrom 3 %, epoll_wait 2 % |
| requests, 64 connections | 95 % | sendto 67 %, recvfrom 10 %, epoll_wait 4 % |
| bulk, 16 connections | 94 % | splice 81 % |
| UDP, one under way | 93 % | sending 60 %, epoll_wait 9 %, receiving 10 % |

On loopback the packets are carried by whoever sends them, so this is the TCP and UDP
of both ends. A connection takes 15 system calls in usher (HAProxy: 18), of which each
is needed by any proxy: accept, socket, connect, two epoll_ctl, four reads, two
writes, shutdown, two closes, and one that saves a packet (TCP_QUICKACK); and one round of the loop
for each of four events, and not for a connection that is made, since what is to be sent goes right behind connect.

- **New connections**: nine tenths of the processor time are the kernel's work for them, which
  other proxies have as well. Tried, and in: one read instead of a
  look and a read, keepalive only for connections that last, no TCP_NODELAY for one
  write, the handshake's last ACK with the data, accepting on several loops, no timer and no
  goroutine for a connection, a loop that waits for a millisecond
  before it blocks in its own epoll (most of the difference in p99). Tried, and worse: to block at once; to park the goroutine in
  Go's poller, with the loop's epoll descriptor nested in it (the median of requests at 30 % of the rate 1.4 times as long);
  sched_yield before waiting (p99 of requests on 64 connections a quarter longer).
- **New connections through the portals of netfilter**: there the kernel tracks and translates each
  connection besides, which takes a third of *direct* too (see kernel DNAT). HAProxy and nginx
  listen on the address themselves, as usher does with the address portal.
- **No tracking for usher's own connections** (notrack by the endpoint's address, in raw output and prerouting,
  both ways), through nftables, in six rounds of 0.6 s: 1.09 (0.86 to 1.53) of the rate in new connections, 1.01 (0.76 to 1.50)
  with 64 requests under way, 1.15 (0.86 to 1.45) over UDP; of the processor time 0.96, 1.01 and 0.94. That is not more than
  rounds differ, and any rule of the node that asks for a connection's state would see usher's as untracked; it also excludes that
  endpoints see the client's address, which takes a mark that tracking keeps. It is not offered. What a bridge adds with
  bridge-nf-call-iptables was not measured.
- **A portal by nftables without tracking and translation** (notrack, tproxy, a route chain for the node's own
  clients, no conntrack entry at all) was built and measured, in five rounds: 0.84 of *address* in new connections,
  0.85 with 64 requests under way, 0.80 over UDP; *nftables* had 0.74, 0.76 and 0.82. Clients and endpoint each
  behind a veth, in 18 rounds: 0.82, 0.92, 0.87, and *nftables* 0.84, 0.90, 0.92. Each packet still looks for its
  socket, is looked up in maps and asks the routing rules. It is not kept: *address* takes no netfilter at all, and clashes
  with no process of the node since it has a namespace of its own.
- **More than nginx with one datagram under way**: each datagram is sent by one system call's worth of
  work whoever makes it, and there is nothing to gather: a client that waits for its answer
  sends one. With four under way usher sends them together.
- **A change among 10,000 Services** begins here with a file that is written. Only what the change has to do with
  is made anew. usher reads the file once no manifest has changed for 25 ms; the figures in the table are from before that, when
  one file that lost nothing was read at once. In one YAML file of 10,000 Services the one that was changed is found in 28 ms.
  From there on it takes 5 ms; with iptables 30 to 60, since iptables-restore reads all rules first.

For bulk data were tried pipes of 64 KiB, 256 KiB, 1 MiB (in) and 4 MiB, turns of 256 KiB to 4 MiB, and
socket buffers of 256 KiB and 1 MiB: less is slower each time, more the same. In: splice(2) without telling
Go's scheduler, which took a seventh of the processor time.

The machine's own congestion control is bbr. It paces by timers, which on loopback is most of what is
measured: bulk rates are less than half, for everybody. With it (-congestion bbr; six rounds of the
same day) usher without a portal has 1.11 times HAProxy's new connections, 1.48 and 1.37 times its bulk rates on one
and on 16 connections, and 0.63 and 0.60 times kernel DNAT's.

*usher, address, own namespace* is the address portal with VIPs in a network namespace of usher's own: the packets
between a client and usher pass a pair of interfaces besides. Clients are on the node here; those of Pods and other
hosts are forwarded, too.
`

func introduction(run Run) string {
	m := run.Machine
	return fmt.Sprintf(`# Benchmarks

usher beside other proxies, on the same machine, in turn. This page is written by
%[1]smake bench%[1]s (%[1]smake bench QUICK=1%[1]s takes three minutes); [test/bench](../test/bench) is how.
%[1]smake bench CLUSTER=1%[1]s measures 10,000 Services of a cluster as well, beside kube-proxy.

Absolute figures say little on a machine that is shared with others; ratios of what
was measured within the same seconds do. So in every round, and for every figure, the
peers take turns; a ratio is taken in each round, and what stands here is the median of
the rounds, with the least and the greatest in brackets where it counts most. Read the ratios, and look at
how far the brackets are apart before believing a second digit.

How far: measured again some hours later, two rounds of 3 s, *usher, no portal* had 0.98 times HAProxy's new
connections (p99 1.10), 0.90 of its requests on 64 connections (1.49) and 1.38 of its bulk on 16; with *address* 1.00
(1.08), 0.91 (1.34) and 1.36. The program of the figures below, in turn with the one measured then, six rounds each: 0.96 to 1.17
(median 1.03) against 0.84 to 1.09 (1.02). So the processor below the virtual machine decides more than what was changed.

On another processor (Intel Xeon, two cores, the program fb78500, three rounds of 1 s) *usher, no portal* had 1.02 times HAProxy's new
connections (p99 1.27), 1.20 of its requests on 64 connections (0.71) and 1.55 of its bulk on 16, and of nginx's datagrams 0.92 with one
under way (p99 1.59) and 1.34 with four (0.69); with *address* 1.01 (1.19), 1.15 (0.65), 1.53, 0.99 (1.13) and 1.38 (0.74).

*The ceiling* is half of *direct*, taken in each round: a proxy is two hops, and two cost
twice what one does. It is passed by who gathers things or does not copy bulk, and where
processors are not what *direct* lacks: on one connection it waits most of the time.

A percentile stands where ten exchanges of the round exceed it: p99 takes 1,000 of them, and
p99.9 takes 10,000.

- %[2]s; %[3]d cores, %[4]s, %.1[5]f GiB of memory; %[6]s
- %[7]s
- congestion control of TCP: %[9]s
- each load runs for %[8]s s after 0.3 s of warming up

All take the same path: in a network namespace of its own for each measurement, clients
connect on loopback to 10.96.0.10, and the endpoint listens on 10.244.0.11. HAProxy
and nginx listen on 10.96.0.10 themselves; *HAProxy behind nftables* or *iptables* listens elsewhere,
and a rule leads there, as usher's portals do. Kernel DNAT rewrites that address, as
kube-proxy's rules do, and is the limit for a proxy outside the kernel. usher is reached
through its portals as a user would have it, and without one, on a port of its own. *direct* is
no proxy: it shows that clients and endpoint are not what is measured. They are one
epoll loop for each core (the endpoint has as many more for bulk), in processes of their own, and share
the cores with the proxy.
Processor time is the user and system time of the proxy's processes alone; what the kernel
does for connections within them is part of it, so DNAT's cannot be told.
`, "`", m.System, m.Cores, m.CPU, float64(m.Memory)/(1<<30), m.Date, strings.Join(m.Programs, "\n- "), number(m.Seconds), m.congestion())
}

// congestion tells the congestion control of TCP, and why it is that.
func (m Machine) congestion() string {
	why := "cubic is what Linux has by default; -congestion sets another"
	if m.Note != "" {
		why = m.Note
	}
	return fmt.Sprintf("%s (%s)", m.Congestion, why)
}

// sectionTable has a row for each peer. What stands in brackets are the least and
// the greatest: of the ratios that matter most, and where there are none of the
// figures.
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
			// Nothing is compared with who was not measured.
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

// has reports whether there is something to show of a quantity.
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

// failures tells what could not be measured.
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
