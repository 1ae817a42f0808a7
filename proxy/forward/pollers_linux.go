package forward

import (
	"runtime"
	"sync"
)

// Pollers are one [Poller] for each processor, but at most maxPollers, shared by all that has something to
// watch: each waits for its events without Go's scheduler knowing, and would hold up
// another one that takes turns with it on the processor. The zero Pollers is ready for use.
type Pollers struct {
	mu    sync.Mutex
	list  []*Poller
	users int
}

// maxPollers bounds the threads on machines with many processors: each Poller keeps one while it
// waits for events. docs/sizing.md has what was counted.
const maxPollers = 64

// Take returns the pollers, which run until everybody who has taken them has released
// them. They take two descriptors each.
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

// Release is called once for each Take, by whoever has nothing to watch any more.
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
