package main

import (
	"github.com/usherproxy/usher/test/bench/report"
)

// In each cycle 10,000 connections are opened and closed, as many at once as the
// peers' limits allow.
const (
	cycles      = 10
	atOnce      = 2500
	timesACycle = 4
)

// churn measures whether memory and descriptors go back to where they were. The
// start is before the first connection; memory that a program has taken once
// and keeps for the next is told apart by what it is after the first cycle.
func churn(s *scene, o options) (report.Values, error) {
	start, err := s.settled()
	if err != nil {
		return nil, err
	}
	v := report.Values{report.ResidentStart: float64(start.resident), report.DescriptorsStart: float64(start.descriptors)}
	for cycle := 1; cycle <= cycles; cycle++ {
		for range timesACycle {
			if err := s.openAndClose(atOnce); err != nil {
				return nil, err
			}
		}
		if cycle != 1 && cycle != cycles {
			continue
		}
		now, err := s.settled()
		if err != nil {
			return nil, err
		}
		if cycle == 1 {
			v[report.ResidentFirst] = float64(now.resident)
			continue
		}
		v[report.ResidentEnd], v[report.DescriptorsEnd] = float64(now.resident), float64(now.descriptors)
	}
	return v, nil
}
