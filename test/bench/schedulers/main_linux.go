// Command schedulers measures how the schedulers distribute connections, for docs/services.md. It prints the tables of
// that page, and writes its picture.
//
//	go run ./test/bench/schedulers -usher bin/usher -picture docs/schedulers.svg
//
// Connections are real: they go through usher on loopback, without a portal and without root. Only package balance is
// used to calculate which clients move when endpoints change.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/usherproxy/usher/config"
)

// The measured load: connections in total, atOnce concurrent ones from as many client addresses, to endpoints that each
// serve one connection at a time. The last endpoint takes ten times as long.
const (
	connections = 10_000
	atOnce      = 40
	endpoints   = 5
	fast, slow  = 500 * time.Microsecond, 5 * time.Millisecond
)

// weighted are the schedulers that are measured with the weight 10, and 1 for the slow endpoint.
var weighted = []string{"sed", "nq", "wrr", "wlc"}

// result is the result of one scheduler.
type result struct {
	name     string
	counts   [endpoints]int
	took     time.Duration
	p50, p99 time.Duration
}

func main() {
	log.SetFlags(0)
	usher := flag.String("usher", "bin/usher", "the usher to measure")
	picture := flag.String("picture", "docs/schedulers.svg", "`file` for the picture")
	only := flag.String("only", strings.Join(config.SchedulerNames(), ","), "schedulers to measure")
	flag.Parse()
	if err := run(*usher, *picture, strings.Split(*only, ",")); err != nil {
		log.Fatalf("schedulers: %v", err)
	}
}

func run(usher, picture string, names []string) error {
	var addrs []netip.AddrPort
	for i := range endpoints {
		e, err := newEndpoint(i)
		if err != nil {
			return err
		}
		addrs = append(addrs, e)
	}
	places, stop, err := start(usher, names, addrs)
	if err != nil {
		return err
	}
	defer stop()
	var results []result
	for _, name := range names {
		r, err := measure(name, places[name], addrs)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		results = append(results, r)
	}
	printSpeeds(results)
	fmt.Println()
	printMoves(names)
	return os.WriteFile(picture, []byte(draw(results)), 0o644)
}

// newEndpoint serves one connection after the other for its service time, and sends its number.
func newEndpoint(i int) (netip.AddrPort, error) {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:0", 11+i))
	if err != nil {
		return netip.AddrPort{}, err
	}
	takes := fast
	if i == endpoints-1 {
		takes = slow
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			time.Sleep(takes)
			_, _ = c.Write([]byte{byte(i)})
			c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort(), nil
}

// start starts usher with a Service for each scheduler. It returns the addresses of the Services.
func start(usher string, names []string, addrs []netip.AddrPort) (places map[string]string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "schedulers-")
	if err != nil {
		return nil, nil, err
	}
	var b strings.Builder
	for _, name := range names {
		weights := ""
		if slices.Contains(weighted, name) {
			weights = fmt.Sprintf(`, usher.io/weight: "%s=1,*=10"`, addrs[len(addrs)-1].Addr())
		}
		fmt.Fprintf(&b, "apiVersion: v1\nkind: Service\nmetadata: {name: %s, annotations: {usher.io/scheduler: %s%s}}\nspec: {ports: [{name: web, port: 80}]}\n", name, name, weights)
		for i, a := range addrs {
			if i == 0 || a.Port() != addrs[i-1].Port() { // a slice has one port
				fmt.Fprintf(&b, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s-%d, labels: {kubernetes.io/service-name: %[1]s}}\naddressType: IPv4\nports: [{name: web, port: %[3]d}]\nendpoints:\n", name, i, a.Port())
			}
			fmt.Fprintf(&b, "- {addresses: [%s]}\n", a.Addr())
		}
		b.WriteString("---\n")
	}
	if err := os.WriteFile(filepath.Join(dir, "services.yaml"), []byte(b.String()), 0o600); err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(usher, "run", "--manifests", dir, "--portal=none", "--admin-address=")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		os.RemoveAll(dir)
	}
	places = map[string]string{}
	for lines := bufio.NewScanner(out); len(places) < len(names) && lines.Scan(); {
		// default/lc  web 80/TCP  10.96.0.10:80  127.0.0.1:36841  127.0.0.11:8080, …
		columns := strings.Fields(lines.Text())
		if len(columns) > 4 && strings.HasPrefix(columns[0], "default/") {
			places[strings.TrimPrefix(columns[0], "default/")] = columns[4]
		}
	}
	if len(places) < len(names) {
		stop()
		return nil, nil, fmt.Errorf("usher says only where these are: %v", places)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return places, stop, nil
}

// measure makes the connections of one scheduler.
func measure(name, to string, addrs []netip.AddrPort) (result, error) {
	r := result{name: name}
	times := make([]time.Duration, connections)
	var counts [endpoints]atomic.Int64
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	began := time.Now()
	for range atOnce {
		wg.Go(func() {
			for n := next.Add(1) - 1; n < connections && failed.Load() == nil; n = next.Add(1) - 1 {
				start := time.Now()
				who, err := connect(to, int(n))
				if err != nil {
					failed.Store(&err)
					return
				}
				times[n] = time.Since(start)
				counts[who].Add(1)
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return r, *err
	}
	r.took = time.Since(began)
	for i := range counts {
		r.counts[i] = int(counts[i].Load())
	}
	slices.Sort(times)
	r.p50, r.p99 = times[connections/2], times[connections*99/100]
	return r, nil
}

// connect makes a connection of the n-th client, which has its own address.
func connect(to string, n int) (endpoint int, err error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 100, byte(n>>8), byte(n))}, Timeout: 30 * time.Second}
	c, err := d.Dial("tcp", to)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	var who [1]byte
	if _, err := io.ReadFull(c, who[:]); err != nil {
		return 0, err
	}
	return int(who[0]), nil
}
