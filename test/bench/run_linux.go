package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/usherproxy/usher/test/bench/report"
)

// run measures what was selected. In each round, and for each figure, the peers
// take turns: what is compared was measured within seconds.
func run(o options) error {
	wanted, err := selected("only", figures, figureName, o.only)
	if err != nil {
		return err
	}
	usher, err := filepath.Abs(o.usher)
	if err != nil {
		return err
	}
	peers, err := selected("peers", allPeers(usher), peerName, o.peers)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("root is needed, to make network namespaces")
	}
	results, keep, err := resume(o.results)
	if err != nil {
		return err
	}
	defer keep.Close()
	for round := 1; round <= o.rounds; round++ {
		for _, f := range wanted {
			for _, p := range peers {
				if f.udp && p.noUDP || f.userspace && p.kernel || results.Find(f.name, p.name, round) != nil {
					continue
				}
				values, err := measure(f, p, o)
				if err != nil {
					return fmt.Errorf("%s, %s, round %d: %w", f.name, p.name, round, err)
				}
				r := report.Result{Figure: f.name, Peer: p.name, Round: round, Values: values}
				results = append(results, r)
				if err := report.Write(keep, r); err != nil {
					return err
				}
				fmt.Println(report.Line(r))
			}
		}
	}
	fmt.Print("\n", report.Summary(results))
	return nil
}

// resume returns the results that a file has, and the file to append to. Without
// a file nothing is kept.
func resume(path string) (report.Results, *os.File, error) {
	if path == "" {
		path = os.DevNull
	}
	results, err := report.Read(path)
	if err != nil {
		return nil, nil, err
	}
	keep, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	return results, keep, err
}

// measure takes one figure of one peer.
func measure(f figure, p peer, o options) (report.Values, error) {
	s, err := setScene(p, o.loops)
	if err != nil {
		return nil, err
	}
	defer s.close()
	return f.measure(s, o)
}
