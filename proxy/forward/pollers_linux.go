package forward

import (
	"runtime"
	"sync"
)

// Pollers are one [Poller] per CPU, at most maxPollers, which the servers of all protocols share. A Poller may hold its
// CPU for a moment while it waits for events, so a second one on the same CPU would be delayed. The zero Pollers is
// ready for use.
type Pollers struct {
	mu    sync.Mutex
	list  []*Poller
	users int
}

// maxPollers limits the threads on machines with many CPUs: each Poller keeps a thread while it waits for events.
// docs/sizing.md has the measurements.
const maxPollers = 64

// Take returns the Pollers, and starts them if they do not run. They run until Release was called once for each Take.
// Each uses two descriptors.
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

// Release undoes one Take. Call it when the caller watches no more descriptors.
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
