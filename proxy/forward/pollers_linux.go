package forward

import (
	"runtime"
	"sync"
)

// Pollers are one [Poller] per CPU, at most maxPollers, shared by all users of descriptors. A Poller waits for events
// without notice to Go's scheduler, so a second one on the same CPU would be delayed. The zero Pollers is ready for
// use.
type Pollers struct {
	mu    sync.Mutex
	list  []*Poller
	users int
}

// maxPollers limits the threads on machines with many CPUs: each Poller keeps one while it waits for events.
// docs/sizing.md has the measurements.
const maxPollers = 64

// Take returns the pollers, which run until each Take has had its Release. They take two descriptors each.
func (ps *Pollers) Take() ([]*Poller, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.users == 0 {
		for range min(maxPollers, runtime.GOMAXPROCS(0)) {
			p, err := NewPoller()
			if err != nil {
				ps.close()
				return nil, err
			}
			ps.list = append(ps.list, p)
		}
	}
	ps.users++
	return ps.list, nil
}

// Release is called once for each Take, when the caller watches nothing any longer.
func (ps *Pollers) Release() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.users--; ps.users == 0 {
		ps.close()
	}
}

func (ps *Pollers) close() {
	for _, p := range ps.list {
		p.Close()
	}
	ps.list = nil
}
