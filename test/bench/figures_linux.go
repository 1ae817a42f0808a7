package main

import (
	"slices"
	"time"

	"github.com/usherproxy/usher/test/bench/load"
	"github.com/usherproxy/usher/test/bench/report"
)

// figure is a measurement made for every peer.
type figure struct {
	name    string
	measure func(s *scene, o options) (report.Values, error)
	// of selects the peers to measure; nil means all.
	of func(peer) bool
	// set, if not nil, changes how the peer is set up.
	set func(peer) peer
	// once: not in every round, since it takes long and hardly varies.
	once bool
	// open, if not nil, is a load at a constant rate, which must be settled first.
	open *openLoop
}

// message is the number of bytes that a client sends and gets back, and the size of a datagram.
const message = 64

// figures are all figures, in the order in which they are measured and printed.
var figures = []figure{
	{name: "crr", measure: exchanges(load.CRR, 64, 100_000)},
	{name: "rr1", measure: exchanges(load.RR, 1, 1_000_000)},
	{name: "rr64", measure: exchanges(load.RR, 64, 1_000_000)},
	openLoop{kind: load.CRR, share: 0.3}.figure("crr-at-30"),
	openLoop{kind: load.CRR, share: 0.6}.figure("crr-at-60"),
	openLoop{kind: load.CRR, share: 0.8}.figure("crr-at-80"),
	openLoop{kind: load.RR, share: 0.3}.figure("rr64-at-30"),
	openLoop{kind: load.RR, share: 0.6}.figure("rr64-at-60"),
	openLoop{kind: load.RR, share: 0.8}.figure("rr64-at-80"),
	openLoop{kind: load.CRR, share: 0.1, beside: 2}.figure("crr-busy"),
	openLoop{kind: load.RR, share: 0.1, beside: 2}.figure("rr64-busy"),
	{name: "stream1", measure: stream(1)},
	{name: "stream16", measure: stream(16)},
	{name: "mixed", measure: mixed(0)},
	{name: "mixed-at", measure: mixed(constantBulk)},
	{name: "udp1", of: speaksUDP, measure: udp(1)},
	{name: "udp4", of: speaksUDP, measure: udp(4)},
	{name: "idle", measure: idle},
	{name: "churn", of: isProcess, once: true, measure: churn},
	{name: "services10", of: hasPortal, set: many(10), measure: services},
	{name: "services1000", of: hasPortal, set: many(1000), measure: services},
	{name: "services10000", of: hasPortal, set: many(10_000), measure: services},
}

// about reports whether the figure is measured for the peer.
func (f figure) about(p peer) bool {
	return (f.of == nil || f.of(p)) && (p.figures == nil || slices.Contains(p.figures, f.name))
}

func speaksUDP(p peer) bool { return !p.noUDP }
func isProcess(p peer) bool { return !p.kernel }
func hasPortal(p peer) bool { return p.usher != nil && p.usher.portal != "none" }

// warm is the time that a load runs before it is measured.
const warm = 300 * time.Millisecond

// exchanges measures clients' exchanges per second, and the proxy's CPU time. per is the number of exchanges that the
// CPU time is given for.
func exchanges(kind load.Kind, clients, per int) func(*scene, options) (report.Values, error) {
	return func(s *scene, o options) (report.Values, error) {
		out, _, err := s.drive(load.Spec{Kind: kind, To: s.echo, Clients: clients, Size: message, Warm: warm, For: o.each})
		if err != nil {
			return nil, err
		}
		return out.values(s, float64(per)), nil
	}
}

// values returns the values that all kinds of exchanges have in common. per is as in exchanges.
func (o outcome) values(s *scene, per float64) report.Values {
	v := report.Values{
		report.Rate:   float64(o.Done) / o.Seconds,
		report.Errors: float64(o.Errors),
	}
	o.addLatencies(v)
	o.addCPU(v, s, per)
	return v
}

// addLatencies adds the percentiles for which there are enough exchanges.
func (o outcome) addLatencies(v report.Values) {
	for q, d := range map[report.Quantity]time.Duration{report.P50: o.P50, report.P99: o.P99, report.P999: o.P999} {
		if d > 0 {
			v[q] = micros(d)
		}
	}
}

// gbits returns Gbit/s, if bytes were counted.
func (o outcome) gbits() float64 { return float64(o.Done) * 8 / 1e9 / o.Seconds }

// addCPU adds the proxy's CPU seconds. per is the number of operations that they are given for.
func (o outcome) addCPU(v report.Values, s *scene, per float64) {
	if s.proxy != nil && o.Done > 0 {
		v[report.CPU] = o.cpu().Seconds() / float64(o.Done) * per
	}
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// stream measures Gbit/s, and the proxy's CPU time for 100 GB.
func stream(clients int) func(*scene, options) (report.Values, error) {
	return func(s *scene, o options) (report.Values, error) {
		out, _, err := s.drive(load.Spec{Kind: load.Stream, To: s.sink, Clients: clients, Size: 256 << 10, Warm: warm, For: o.each})
		if err != nil {
			return nil, err
		}
		v := report.Values{report.Gbits: out.gbits()}
		out.addCPU(v, s, 100e9)
		return v, nil
	}
}

// constantBulk is a bulk rate that each proxy reaches during short requests, in bytes per second: 4 Gbit/s.
const constantBulk = 4e9 / 8

// mixed measures 64 connections with short requests while 16 bulk connections run through the same proxy, at rate bytes
// per second together, or at most if that is 0. Each kind has its clients in a separate process.
func mixed(rate float64) func(*scene, options) (report.Values, error) {
	return func(s *scene, o options) (report.Values, error) {
		requests, err := s.startClients(load.Spec{Kind: load.RR, To: s.echo, Clients: 64, Size: message, Warm: warm, For: o.each})
		if err != nil {
			return nil, err
		}
		defer requests.stop()
		// Bulk starts last and so ends last: it runs alongside the requests all the time.
		bulk, err := s.startClients(load.Spec{Kind: load.Stream, To: s.sink, Clients: 16, Size: 256 << 10, Rate: rate, Warm: warm, For: o.each})
		if err != nil {
			return nil, err
		}
		defer bulk.stop()
		short, err := s.watch(requests)
		if err != nil {
			return nil, err
		}
		long, err := s.watch(bulk)
		if err != nil {
			return nil, err
		}
		v := report.Values{report.Rate: float64(short.Done) / short.Seconds, report.Gbits: long.gbits()}
		short.addLatencies(v)
		return v, nil
	}
}

// udp measures datagrams of 16 clients, each with window datagrams in flight.
func udp(window int) func(*scene, options) (report.Values, error) {
	return func(s *scene, o options) (report.Values, error) {
		out, _, err := s.drive(load.Spec{Kind: load.UDP, To: s.udp, Clients: 16, Window: window, Size: message, Warm: warm, For: o.each})
		if err != nil {
			return nil, err
		}
		v := out.values(s, 1_000_000)
		v[report.Lost] = float64(out.Lost)
		return v, nil
	}
}
