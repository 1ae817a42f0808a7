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

// Quantity is a measured quantity with its unit.
type Quantity string

const (
	Rate   Quantity = "rate"   // exchanges or datagrams per second
	Due    Quantity = "due"    // exchanges per second that clients began, where they do not wait for the previous one
	P50    Quantity = "p50"    // microseconds
	P99    Quantity = "p99"    // microseconds
	P999   Quantity = "p99.9"  // microseconds
	Gbits  Quantity = "gbits"  // Gbit/s
	CPU    Quantity = "cpu"    // seconds of the proxy, for the number of exchanges or bytes that the figure states
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
	Change    Quantity = "change"     // milliseconds until the portal of an added Service is open
	FirstRate Quantity = "first-rate" // crr per second through the first portal
	LastRate  Quantity = "last-rate"  // and through the last
	LastFirst Quantity = "last-first" // their ratio
	Rest      Quantity = "rest"       // percent of a core that is used when idle
)

// Cluster is the figure of proxies that get 10,000 Services from an API server. Package test/cluster measures it
// separately.
const Cluster = "cluster10000"

// Values are the values of one measurement.
type Values map[Quantity]float64

// Result is one measurement.
type Result struct {
	Figure string
	Peer   string
	Round  int // from 1
	Values Values
	Failed string `json:",omitempty"` // why values are missing
}

// Machine describes the machine of the measurements.
type Machine struct {
	Date       string // of the first measurement
	System     string // kernel and distribution
	CPU        string
	Cores      int
	Memory     int64    // bytes
	Congestion string   // control of TCP
	Note       string   `json:",omitempty"` // why it is not the usual one
	Programs   []string // with their versions
	Seconds    float64  // duration of each measured load
}

// Run is the content of a file of results.
type Run struct {
	Machine Machine
	Results Results
}

// record is a line of the file: one or the other.
type record struct {
	Machine *Machine `json:",omitempty"`
	Result  *Result  `json:",omitempty"`
}

// Results are the measurements of one run, in the order of measurement.
type Results []Result

// With returns r with m added; m replaces an earlier measurement of the same figure, peer and round.
func (r Results) With(m Result) Results {
	return append(slices.DeleteFunc(r, m.same), m)
}

func (m Result) same(other Result) bool {
	return m.Figure == other.Figure && m.Peer == other.Peer && m.Round == other.Round
}

// Has reports whether a measurement exists and did not fail.
func (r Results) Has(figure, peer string, round int) bool {
	i := slices.IndexFunc(r, Result{Figure: figure, Peer: peer, Round: round}.same)
	return i >= 0 && r[i].Failed == ""
}

// Find returns the values of one measurement, or nil if it does not exist.
func (r Results) Find(figure, peer string, round int) Values {
	for _, m := range r {
		if m.Figure == figure && m.Peer == peer && m.Round == round {
			return m.Values
		}
	}
	return nil
}

// Read reads results from a file with one JSON object per line. A missing file has none.
//
// A measurement that was repeated after a failure is contained once.
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
