package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/usherproxy/usher/test/bench/load"
)

// The first argument of a process that is not the bench itself but one of its parts; the second describes its work as
// JSON.
const (
	clientsPart  = "clients"
	endpointPart = "endpoint"
	computePart  = "compute" // its second argument is a duration
)

// runPart runs the part that args name, if they name one.
func runPart(args []string) (ran bool, err error) {
	if len(args) != 2 {
		return false, nil
	}
	switch args[0] {
	case clientsPart:
		var spec load.Spec
		if err := json.Unmarshal([]byte(args[1]), &spec); err != nil {
			return true, err
		}
		return true, load.Run(spec, os.Stdin, os.Stdout)
	case endpointPart:
		var e load.Endpoint
		if err := json.Unmarshal([]byte(args[1]), &e); err != nil {
			return true, err
		}
		return true, load.Serve(e, func() { fmt.Println("ready") })
	case computePart:
		var d time.Duration
		if err := json.Unmarshal([]byte(args[1]), &d); err != nil {
			return true, err
		}
		compute(d)
		return true, nil
	}
	return false, nil
}

// startPart starts a part on the stage.
func (s *stage) startPart(part string, does any) (*process, error) {
	argument, err := json.Marshal(does)
	if err != nil {
		return nil, err
	}
	return s.start("/proc/self/exe", part, string(argument))
}

// startEndpoint starts the endpoint and waits until it listens.
func (s *stage) startEndpoint(loops int) (*process, error) {
	p, err := s.startPart(endpointPart, load.Endpoint{Echo: netip.AddrPortFrom(netip.IPv4Unspecified(), echoTarget), Sink: netip.AddrPortFrom(netip.IPv4Unspecified(), sinkTarget), UDP: onEndpoint.udp, Loops: loops})
	if err != nil {
		return nil, err
	}
	_, err = p.line()
	return p, err
}

// outcome is the clients' result, and the proxy's usage meanwhile.
type outcome struct {
	load.Result
	before, after usage // of the proxy, when clients begin and end
}

func (o outcome) cpu() time.Duration { return o.after.cpu - o.before.cpu }

// drive makes a load and watches the proxy. It also returns the clients, which have ended unless they hold connections.
func (s *scene) drive(spec load.Spec) (o outcome, clients *process, err error) {
	if clients, err = s.startClients(spec); err != nil {
		return o, nil, err
	}
	if o, err = s.watch(clients); err != nil || spec.Kind != load.Hold {
		clients.stop()
	}
	return o, clients, err
}

func (s *scene) startClients(spec load.Spec) (*process, error) {
	spec.Loops = s.loops
	return s.startPart(clientsPart, spec)
}

// watch records the proxy's usage when clients begin and end, and returns it with the clients' result.
func (s *scene) watch(clients *process) (o outcome, err error) {
	if _, err = clients.line(); err != nil {
		return o, err
	}
	if o.before, err = s.proxyUsage(); err != nil {
		return o, err
	}
	// Ended is printed at the end, and the result after it, somewhat later.
	if _, err = clients.out.ReadString(' '); err != nil {
		return o, clients.gone()
	}
	if o.after, err = s.proxyUsage(); err != nil {
		return o, err
	}
	line, err := clients.line()
	if err != nil {
		return o, err
	}
	if err = json.NewDecoder(strings.NewReader(line)).Decode(&o.Result); err != nil {
		return o, fmt.Errorf("clients said %q: %w", line, err)
	}
	return o, nil
}

// proxyUsage returns the proxy's usage, or nothing if the kernel is the proxy.
func (s *scene) proxyUsage() (usage, error) {
	if s.proxy == nil {
		return usage{}, nil
	}
	return s.proxy.usage()
}
