package main

import (
	"fmt"
)

// figures measure the code that a reader passes: files, packages, functions, calls, stays
// (stretches of calls in one file) and netlink requests.
type figures [6]int

const (
	inFiles = iota
	inPackages
	inFunctions
	inCalls
	inStays
	inRequests
)

var columns = [...]string{"files", "packages", "functions", "calls", "stays", "netlink requests"}

// none marks a figure that is not counted.
const none = -1

// ceilings are the highest figures that the spec accepts. A commit that shortens a walk lowers them: the spec fails if
// one is more than 3% too high. A commit that raises one must give the reason in its message.
var ceilings = []struct {
	event, name string
	highest     figures
}{
	{"tcp", "TCP connection", figures{23, 10, 120, 169, 108, none}},
	{"udp", "datagram and answer", figures{24, 10, 98, 126, 86, none}},
	{"change", "endpoint added, data plane", figures{16, 6, 47, 62, 33, none}},
	{"api-endpoint", "endpoint added, API server", figures{32, 10, 110, none, none, 0}},
	{"api-service", "Service added, API server", figures{73, 16, 288, none, none, 7}},
	{"file-endpoint", "endpoint added, file", figures{42, 11, 167, none, none, 0}},
	{"file-service", "Service added, file", figures{85, 17, 375, none, none, 7}},
}

// compare returns the ceilings that do not match measured. It ignores figures that are none.
func compare(measured map[string]figures) (faults []string) {
	for _, c := range ceilings {
		f, ok := measured[c.event]
		for i, ceiling := range c.highest {
			switch {
			case !ok || ceiling == none || f[i] == none:
			case f[i] > ceiling:
				faults = append(faults, fmt.Sprintf("%s: %d %s, more than %d", c.name, f[i], columns[i], ceiling))
			case 100*ceiling > 103*f[i]:
				faults = append(faults, fmt.Sprintf("%s: only %d %s: lower the ceiling, which is %d", c.name, f[i], columns[i], ceiling))
			}
		}
	}
	return faults
}
