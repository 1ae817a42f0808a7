package main

import (
	"github.com/usherproxy/usher/test/bench/report"
)

// Each cycle opens and closes 10,000 connections, as many concurrently as the peers' limits allow.
const (
	cycles      = 10
	atOnce      = 2500
	timesACycle = 4
)

// churn measures whether memory and descriptors return to their values before the first connection. The value after the
// first cycle shows the memory that a program allocates once and keeps for later connections.
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
