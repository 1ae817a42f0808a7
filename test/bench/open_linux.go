package main

import (
	"fmt"
	"time"

	"github.com/usherproxy/usher/test/bench/load"
	"github.com/usherproxy/usher/test/bench/report"
)

// openLoop is a load at a constant rate: a share of the rate that HAProxy reaches here.
type openLoop struct {
	kind   load.Kind
	share  float64
	beside int // processes that use CPU meanwhile
}

// figure returns the figure of that load.
func (l openLoop) figure(name string) figure {
	return figure{name: name, open: &l, measure: func(s *scene, o options) (report.Values, error) {
		for range l.beside {
			p, err := s.startPart(computePart, o.each+time.Minute)
			if err != nil {
				return nil, err
			}
			defer p.stop()
		}
		due := o.capacity[l.kind] * l.share
		out, _, err := s.drive(load.Spec{Kind: l.kind, To: s.echo, Clients: 64, Size: message, Rate: due, Warm: warm, For: o.each})
		if err != nil {
			return nil, err
		}
		v := out.values(s, 100_000)
		v[report.Due] = due
		return v, nil
	}}
}

// settle ensures that the rate of the load is known: the one of earlier results, or a share of HAProxy's rate now, with
// clients that send as fast as they can.
func (l openLoop) settle(name string, o options, results report.Results) error {
	if o.capacity[l.kind] > 0 {
		return nil
	}
	for _, r := range results {
		if due := r.Values[report.Due]; r.Figure == name && due > 0 {
			o.capacity[l.kind] = due / l.share
			return nil
		}
	}
	v, err := measure(figure{measure: exchanges(l.kind, 64, 1)}, haproxy, o)
	if err != nil {
		return fmt.Errorf("figure %s takes its rate from HAProxy: %w", name, err)
	}
	o.capacity[l.kind] = v[report.Rate]
	return nil
}

// compute keeps a CPU busy for the given time.
func compute(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
	}
}
