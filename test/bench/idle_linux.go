package main

import (
	"time"

	"github.com/usherproxy/usher/test/bench/load"
	"github.com/usherproxy/usher/test/bench/report"
)

// idleConnections is the number of connections that are held open. HAProxy may have 4,000.
const idleConnections = 3000

// idle measures the cost of a connection that has exchanged one byte: bytes and descriptors of the proxy, and the
// decrease of the whole system's available memory. The latter includes the sockets of clients and endpoint; they are
// the same for all peers, and "direct" shows their cost.
func idle(s *scene, o options) (report.Values, error) {
	// Exclude what a program allocates for its first connections.
	if err := s.openAndClose(100); err != nil {
		return nil, err
	}
	before, err := s.settled()
	if err != nil {
		return nil, err
	}
	_, clients, err := s.drive(load.Spec{Kind: load.Hold, To: s.echo, Clients: idleConnections, Size: 1})
	if err != nil {
		return nil, err
	}
	defer clients.stop()
	after, err := s.settled()
	if err != nil {
		return nil, err
	}
	v := report.Values{report.System: float64(before.available-after.available) / idleConnections}
	if s.proxy != nil {
		v[report.Resident] = float64(after.resident-before.resident) / idleConnections
		v[report.Descriptors] = float64(after.descriptors-before.descriptors) / idleConnections
	}
	return v, nil
}

// openAndClose opens n connections, all concurrently, and closes them.
func (s *scene) openAndClose(n int) error {
	_, clients, err := s.drive(load.Spec{Kind: load.Hold, To: s.echo, Clients: n, Size: 1})
	if err != nil {
		return err
	}
	clients.finish()
	return nil
}

// memory is a snapshot of memory use.
type memory struct {
	usage           // of the proxy
	available int64 // bytes, in the whole system
}

// settled returns memory once it has not changed for a second, or after five seconds: the kernel clears removed
// namespaces later, and garbage collection also runs later.
func (s *scene) settled() (memory, error) {
	const interval, quiet = 100 * time.Millisecond, 10
	var steady memory
	calm := 0
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(interval) {
		now, err := s.memory()
		if err != nil {
			return now, err
		}
		if now.descriptors == steady.descriptors && near(now.resident, steady.resident) && near(now.available, steady.available) {
			calm++
		} else {
			steady, calm = now, 0
		}
		if calm == quiet || time.Now().After(deadline) {
			return now, nil
		}
	}
}

// near tolerates the usual fluctuation of programs: 200 bytes for each idle connection.
func near(a, b int64) bool { return max(a-b, b-a) <= idleConnections*200 }

func (s *scene) memory() (memory, error) {
	u, err := s.proxyUsage()
	if err != nil {
		return memory{}, err
	}
	free, err := available()
	return memory{u, free}, err
}
