package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/usherproxy/usher/test/bench/load"
)

// port is the port of the endpoints of printRates, which are one process.
const port = 18080

// The first argument of a process that is a part; the second describes its work as JSON.
const (
	clientsPart  = "clients"
	endpointPart = "endpoint"
)

func runPart(args []string) (done bool, err error) {
	switch {
	case len(args) == 2 && args[0] == clientsPart:
		var spec load.Spec
		if err = json.Unmarshal([]byte(args[1]), &spec); err == nil {
			err = load.Run(spec, os.Stdin, os.Stdout)
		}
	case len(args) == 2 && args[0] == endpointPart:
		var e load.Endpoint
		if err = json.Unmarshal([]byte(args[1]), &e); err == nil {
			err = load.Serve(e, func() { fmt.Println("ready") })
		}
	default:
		return false, nil
	}
	return true, err
}

// part returns the command of a part.
func part(name string, does any) *exec.Cmd {
	argument, _ := json.Marshal(does) // does is a value that JSON can represent
	cmd := exec.Command("/proc/self/exe", name, string(argument))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// rate contains a scheduler's measurements: in each round, new connections per second and usher's CPU time for one.
type rate struct {
	perSecond, cpu []float64
}

// printRates prints the rate of new connections and usher's CPU time for one, with each scheduler, relative to the
// first one. The schedulers are measured in turn.
func printRates(usher string, names []string, rounds int) error {
	endpoint := part(endpointPart, load.Endpoint{Echo: netip.AddrPortFrom(netip.IPv4Unspecified(), port), Sink: netip.AddrPortFrom(netip.IPv4Unspecified(), port+1),
		UDP: netip.AddrPortFrom(netip.IPv4Unspecified(), port), Loops: runtime.NumCPU()})
	out, err := endpoint.StdoutPipe()
	if err != nil {
		return err
	}
	if err := endpoint.Start(); err != nil {
		return err
	}
	defer func() { _ = endpoint.Process.Kill(); _ = endpoint.Wait() }()
	if _, err := out.Read(make([]byte, 1)); err != nil { // it is ready
		return fmt.Errorf("the endpoint: %w", err)
	}
	for _, n := range []int{3, 1000} {
		var addrs []netip.AddrPort
		for i := range n {
			addrs = append(addrs, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}), port))
		}
		rates, err := measureRates(usher, names, addrs, rounds)
		if err != nil {
			return err
		}
		fmt.Printf("\n%d endpoints:\n\n| scheduler | new connections a second | beside %s | processor time for one | beside %[2]s |\n|---|---:|---:|---:|---:|\n", n, names[0])
		for _, name := range names {
			r, first := rates[name], rates[names[0]]
			fmt.Printf("| `%s` | %.0f | %.2f | %.1f µs | %.2f |\n", name, median(r.perSecond), median(ratios(r.perSecond, first.perSecond)), median(r.cpu), median(ratios(r.cpu, first.cpu)))
		}
	}
	return nil
}

func measureRates(usher string, names []string, addrs []netip.AddrPort, rounds int) (map[string]*rate, error) {
	places, pid, stop, err := start(usher, names, addrs)
	if err != nil {
		return nil, err
	}
	defer stop()
	rates := map[string]*rate{}
	for round := range rounds {
		order := slices.Clone(names)
		if round%2 == 1 { // alternate the order, so that it has no effect
			slices.Reverse(order)
		}
		for _, name := range order {
			to, err := netip.ParseAddrPort(places[name])
			if err != nil {
				return nil, fmt.Errorf("usher serves %s at %q: %w", name, places[name], err)
			}
			before, err := load.CPUTime(pid)
			if err != nil {
				return nil, err
			}
			said, err := part(clientsPart, load.Spec{Kind: load.CRR, To: to, Clients: 64, Size: 64, Loops: runtime.NumCPU(), For: time.Second}).Output()
			if err != nil {
				return nil, fmt.Errorf("clients of %s: %w", name, err)
			}
			after, err := load.CPUTime(pid)
			if err != nil {
				return nil, err
			}
			var result load.Result
			_, line, _ := strings.Cut(string(said), load.Ended+" ")
			if err := json.Unmarshal([]byte(line), &result); err != nil {
				return nil, fmt.Errorf("clients of %s said %q: %w", name, said, err)
			}
			if result.Errors > 0 || result.Done == 0 {
				return nil, fmt.Errorf("%s: %d connections, and %d failed", name, result.Done, result.Errors)
			}
			if rates[name] == nil {
				rates[name] = &rate{}
			}
			rates[name].perSecond = append(rates[name].perSecond, float64(result.Done)/result.Seconds)
			rates[name].cpu = append(rates[name].cpu, float64((after-before).Nanoseconds())/1000/float64(result.Done))
		}
	}
	return rates, nil
}

func ratios(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return out
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}
