package report

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
)

// Quantity is something that a measurement yields, with its unit.
type Quantity string

// The quantities.
const (
	Rate   Quantity = "rate"   // exchanges or datagrams a second
	Due    Quantity = "due"    // exchanges a second that clients began, where they do not wait for the last
	P50    Quantity = "p50"    // microseconds
	P99    Quantity = "p99"    // microseconds
	P999   Quantity = "p99.9"  // microseconds
	Gbits  Quantity = "gbits"  // Gbit/s
	CPU    Quantity = "cpu"    // seconds of the proxy, for as many as the figure says
	Errors Quantity = "errors" // connections that failed
	Lost   Quantity = "lost"   // datagrams that did not come back

	Resident    Quantity = "resident"    // bytes of the proxy for a connection
	Descriptors Quantity = "descriptors" // of the proxy for a connection
	System      Quantity = "system"      // bytes of the whole system for a connection

	ResidentStart    Quantity = "resident-start" // bytes, before the first connection
	ResidentFirst    Quantity = "resident-first" // bytes, after the first cycle
	ResidentEnd      Quantity = "resident-end"   // bytes, after the last cycle
	DescriptorsStart Quantity = "descriptors-start"
	DescriptorsEnd   Quantity = "descriptors-end"

	Start     Quantity = "start"      // seconds until all portals are open
	Memory    Quantity = "memory"     // bytes, resident, with all Services
	Change    Quantity = "change"     // milliseconds until the portal of a Service that is added is open
	FirstRate Quantity = "first-rate" // crr a second through the first portal
	LastRate  Quantity = "last-rate"  // and through the last
	LastFirst Quantity = "last-first" // their ratio
	Rest      Quantity = "rest"       // per cent of a core that is taken while nothing happens
)

// Cluster is the figure of proxies that are told of 10,000 Services by an API
// server. It is measured apart, by package test/cluster.
const Cluster = "cluster10000"

// Values are what one measurement yielded.
type Values map[Quantity]float64

// Result is one measurement.
type Result struct {
	Figure string
	Peer   string
	Round  int // from 1
	Values Values
	Failed string `json:",omitempty"` // why there are no values, or not all
}

// Machine is where measurements were made.
type Machine struct {
	Date       string // of the first
	System     string // kernel and distribution
	CPU        string
	Cores      int
	Memory     int64    // bytes
	Congestion string   // control of TCP
	Note       string   `json:",omitempty"` // why that is not the usual one
	Programs   []string // with their versions
	Seconds    float64  // that each load was measured
}

// Run is what a file of results holds.
type Run struct {
	Machine Machine
	Results Results
}

// record is a line of the file: one or the other.
type record struct {
	Machine *Machine `json:",omitempty"`
	Result  *Result  `json:",omitempty"`
}

// Results are the measurements of one run, in the order in which they were made.
type Results []Result

// With returns r with a measurement added, instead of an earlier one of the same.
func (r Results) With(m Result) Results {
	return append(slices.DeleteFunc(r, m.same), m)
}

func (m Result) same(other Result) bool {
	return m.Figure == other.Figure && m.Peer == other.Peer && m.Round == other.Round
}

// Has reports whether a measurement was made, and did not fail.
func (r Results) Has(figure, peer string, round int) bool {
	i := slices.IndexFunc(r, Result{Figure: figure, Peer: peer, Round: round}.same)
	return i >= 0 && r[i].Failed == ""
}

// Find returns the values of one measurement, or nil if it was not made.
func (r Results) Find(figure, peer string, round int) Values {
	for _, m := range r {
		if m.Figure == figure && m.Peer == peer && m.Round == round {
			return m.Values
		}
	}
	return nil
}

// Read reads results from a file with one JSON object a line. A file that is not
// there has none.
//
// A measurement that was made again, since it had failed, is there once.
func Read(path string) (Run, error) {
	var run Run
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return run, nil
	}
	if err != nil {
		return run, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		var r record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return run, fmt.Errorf("%s, line %d: %w", path, n, err)
		}
		if r.Machine != nil {
			run.Machine = *r.Machine
		}
		if r.Result != nil {
			run.Results = run.Results.With(*r.Result)
		}
	}
	return run, lines.Err()
}

// WriteMachine writes the first line of a file of results.
func WriteMachine(out io.Writer, m Machine) error {
	return json.NewEncoder(out).Encode(record{Machine: &m})
}

// Write appends a result to out.
func Write(out io.Writer, r Result) error { return json.NewEncoder(out).Encode(record{Result: &r}) }
