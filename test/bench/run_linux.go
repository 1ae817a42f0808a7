package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/usherproxy/usher/test/bench/report"
)

// run makes the selected measurements. In each round, and for each figure, the peers are measured in turn, so that
// compared values are only seconds apart. A failed measurement is a result, too.
func run(o options) error {
	wanted, err := selected("only", figures, figureName, o.only)
	if err != nil {
		return err
	}
	usher, err := filepath.Abs(o.usher)
	if err != nil {
		return err
	}
	peers, err := selected("peers", allPeers(usher, o.secondHAProxy), peerName, o.peers)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("root is needed, to make network namespaces")
	}
	all, err := report.Read(o.results)
	if err != nil {
		return err
	}
	if o.congestion == "" {
		o.congestion = all.Machine.Congestion // as measured before, when resuming earlier results
	}
	// After a signal, the current measurement is cleaned up, and results are kept.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	var note string
	var end func()
	if o.congestion, note, end, err = settleCongestion(o.congestion); err != nil {
		return err
	}
	defer end()
	if note != "" {
		fmt.Printf("note: measuring with %s, since %s\n", o.congestion, note)
	}
	keep, err := resume(&all, note, o, usher)
	if err != nil {
		return err
	}
	defer keep.Close()
	err = takeTurns(ctx, o, wanted, peers, &all.Results, keep)
	fmt.Print("\n", report.Summary(all.Results))
	return err
}

// takeTurns makes the measurements that are missing in results, and writes them to keep.
func takeTurns(ctx context.Context, o options, wanted []figure, peers []peer, results *report.Results, keep io.Writer) error {
	for round := 1; round <= o.rounds; round++ {
		for _, f := range wanted {
			if f.open != nil {
				if err := f.open.settle(f.name, o, *results); err != nil {
					return err
				}
			}
			for _, p := range peers {
				if !f.about(p) || f.once && round > 1 || results.Has(f.name, p.name, round) {
					continue
				}
				r := report.Result{Figure: f.name, Peer: p.name, Round: round}
				var err error
				if r.Values, err = measure(f, p, o); err != nil {
					r.Failed = err.Error()
				}
				if ctx.Err() != nil {
					// Ctrl-C also reaches clients and proxies: this error is not a result.
					return errors.New("stopped by a signal; with -results, the same command goes on")
				}
				*results = results.With(r)
				if err := report.Write(keep, r); err != nil {
					return err
				}
				fmt.Println(report.Line(r))
			}
		}
	}
	return nil
}

// resume returns the file to append results to, which begins with a description of the machine. Without a file name,
// results are not kept.
func resume(run *report.Run, note string, o options, usher string) (*os.File, error) {
	keep, err := os.OpenFile(cmp.Or(o.results, os.DevNull), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil && run.Machine.Date == "" {
		if run.Machine, err = thisMachine(usher, note, o); err == nil {
			err = report.WriteMachine(keep, run.Machine)
		}
	}
	return keep, err
}

// measure measures one figure of one peer.
func measure(f figure, p peer, o options) (report.Values, error) {
	if f.set != nil {
		p = f.set(p)
	}
	s, err := setScene(p, o)
	if err != nil {
		return nil, err
	}
	values, err := f.measure(s, o)
	s.close()
	if err != nil && s.proxy != nil {
		err = fmt.Errorf("%w; what %s said last: %s", err, p.name, s.proxy.last(1000))
	}
	return values, err
}
