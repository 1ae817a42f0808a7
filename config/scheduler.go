package config

import (
	"fmt"
	"slices"
	"strings"
)

// Scheduler is a method of selecting the endpoint for a new connection. Its zero value is unset, which means RoundRobin.
type Scheduler uint8

// The schedulers. Most have the names and behavior of those of IPVS (see ipvsadm(8)); package proxy/balance implements
// them.
const (
	RoundRobin         Scheduler = iota + 1 // one connection to each in rotation, or as many as its weight
	Random                                  // at random
	LeastConnections                        // the one with the fewest connections for its weight
	PowerOfTwo                              // the less loaded of two random ones
	ShortestDelay                           // the one with the least (connections + 1) / weight
	NeverQueue                              // one without connections if there is one; else like ShortestDelay
	SourceHash                              // by the client's address
	DestinationHash                         // by the VIP
	Maglev                                  // by the client's address, and few clients move when endpoints change
	WeightedRoundRobin                      // the same as RoundRobin; IPVS's name
	WeightedLeast                           // the same as LeastConnections; IPVS's name
)

var schedulerNames = [...]string{"", "rr", "random", "lc", "p2c", "sed", "nq", "sh", "dh", "maglev", "wrr", "wlc"}

// SchedulerNames returns the names of all schedulers.
func SchedulerNames() []string { return slices.Clone(schedulerNames[1:]) }

// String returns the scheduler's name; "" if unset.
func (s Scheduler) String() string { return schedulerNames[s] }

// MarshalText returns the scheduler's name.
func (s Scheduler) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText sets s to the scheduler of that name.
func (s *Scheduler) UnmarshalText(name []byte) error {
	i := slices.Index(schedulerNames[:], string(name))
	if i < 1 {
		return fmt.Errorf("must be one of %s", strings.Join(schedulerNames[1:], ", "))
	}
	*s = Scheduler(i)
	return nil
}

// Weight is an endpoint's share of connections relative to others. Its zero value is the weight 1, which most endpoints
// have.
type Weight uint16

// MaxWeight is the greatest weight.
const MaxWeight = 256

// WeightOf returns the weight n, from 0 to MaxWeight. An endpoint with weight 0 gets no new connections.
func WeightOf(n int) Weight { return Weight(n - 1) }

// Int returns the weight as a number.
func (w Weight) Int() int { return int(w + 1) }
