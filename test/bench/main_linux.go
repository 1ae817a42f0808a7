// Command bench compares usher with other proxies and the kernel, and writes the page docs/benchmarks.md.
//
//	make bench                                everything, and the page: about half an hour
//	make bench QUICK=1                        one short round of most of it: three minutes
//	make bench CLUSTER=1                      also usher compared with kube-proxy: see test/cluster
//	go run ./test/bench -only crr,rr64 -peers haproxy,usher-none -seconds 2 -usher bin/usher
//	go run ./test/bench -report FILE          the page from existing results
//
// It needs root, for network namespaces, and a writable /proc/sys; and haproxy, nginx with its stream module, nft and
// iptables. The peers are in peers_linux.go, the figures in figures_linux.go, and clients and endpoint in package load.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/usherproxy/usher/test/bench/load"
)

// options are the command-line options.
type options struct {
	only, peers []string
	rounds      int
	each        time.Duration // duration of each measured load
	loops       int           // threads of clients, and of the endpoint
	usher       string
	// secondHAProxy is the program of another version; "" for none.
	secondHAProxy string
	congestion    string // control of TCP; "" means the usual one, or its fallback
	results       string
	capacity      map[load.Kind]float64 // exchanges per second that HAProxy reaches here, where measured
	page          string                // file of results to make the page from
}

// The measurements of -quick, which takes three minutes.
const (
	quickFigures = "crr,rr1,rr64,stream1,stream16,mixed,udp1,udp4,idle,services10,services1000"
	quickPeers   = "direct,dnat,haproxy,nginx,haproxy-nftables,usher-none,usher-nftables,usher-address"
)

func main() {
	log.SetFlags(0)
	if ran, err := runPart(os.Args[1:]); ran {
		if err != nil {
			log.Fatal(err)
		}
		return
	}
	o := parse()
	do := run
	if o.page != "" {
		do = writePage
	}
	if err := do(o); err != nil {
		log.Fatalf("bench: %v", err)
	}
}

func parse() options {
	o := options{capacity: map[load.Kind]float64{}}
	only := flag.String("only", "", "`figures` to measure, with commas between: "+strings.Join(names(figures, figureName), ", ")+"; cpu stands for all that yield processor time")
	peers := flag.String("peers", "", "`peers` to compare, with commas between: "+strings.Join(names(allPeers("", "haproxy"), peerName), ", ")+" (default all)")
	flag.IntVar(&o.rounds, "rounds", 3, "how often the peers take turns")
	seconds := flag.Float64("seconds", 3, "how long each load is measured")
	flag.IntVar(&o.loops, "loops", runtime.NumCPU(), "threads of the clients, and as many of the endpoint")
	flag.StringVar(&o.usher, "usher", "bin/usher", "the usher to measure")
	flag.StringVar(&o.secondHAProxy, "haproxy", "", "`program` of another HAProxy version: peer haproxy-2")
	flag.StringVar(&o.congestion, "congestion", "", "congestion control of TCP in the namespaces; without it cubic, Linux's default, or reno where that cannot be set. "+
		"One that net.ipv4.tcp_allowed_congestion_control does not name is added to it for the time of the measurement, and removed from it at the end, also after Ctrl-C or SIGTERM, but not after SIGKILL. "+
		"bbr paces by timers, and on loopback that is what is measured then")
	flag.StringVar(&o.results, "results", "", "`file` to which results are appended, one JSON object a line; what it has already is not measured again")
	flag.StringVar(&o.page, "report", "", "measure nothing, but write docs/benchmarks.md from the results in `file`")
	quick := flag.Bool("quick", false, "one short round of the most telling figures and peers, whatever -only, -peers, -rounds and -seconds say")
	flag.Parse()
	if *quick {
		*only, *peers, o.rounds, *seconds = quickFigures, quickPeers, 1, 0.7
	}
	o.each = time.Duration(*seconds * float64(time.Second))
	o.only, o.peers = list(*only), list(*peers)
	if i := slices.Index(o.only, "cpu"); i >= 0 {
		o.only = slices.Replace(o.only, i, i+1, "crr", "rr64", "stream1")
	}
	return o
}

// list splits a comma-separated list; an empty one is nil.
func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

func figureName(f figure) string { return f.name }
func peerName(p peer) string     { return p.name }

func names[T any](all []T, name func(T) string) (out []string) {
	for _, one := range all {
		out = append(out, name(one))
	}
	return out
}

// selected returns the elements of all that are named in wanted, or all if wanted is empty.
func selected[T any](what string, all []T, name func(T) string, wanted []string) ([]T, error) {
	for _, w := range wanted {
		if known := names(all, name); !slices.Contains(known, w) {
			return nil, fmt.Errorf("-%s: %q is none of %s", what, w, strings.Join(known, ", "))
		}
	}
	var out []T
	for _, one := range all {
		if len(wanted) == 0 || slices.Contains(wanted, name(one)) {
			out = append(out, one)
		}
	}
	return out, nil
}
