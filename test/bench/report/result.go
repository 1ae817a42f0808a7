package report

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Quantity is something that a measurement yields, with its unit.
type Quantity string

// The quantities.
const (
	Rate   Quantity = "rate"   // exchanges or datagrams a second
	P50    Quantity = "p50"    // microseconds
	P99    Quantity = "p99"    // microseconds
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
)

// Values are what one measurement yielded.
type Values map[Quantity]float64

// Result is one measurement.
type Result struct {
	Figure string
	Peer   string
	Round  int // from 1
	Values Values
}

// Results are the measurements of one run, in the order in which they were made.
type Results []Result

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
func Read(path string) (Results, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all Results
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		var r Result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, n, err)
		}
		all = append(all, r)
	}
	return all, lines.Err()
}

// Write appends a result to out.
func Write(out io.Writer, r Result) error { return json.NewEncoder(out).Encode(r) }
