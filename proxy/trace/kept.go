package trace

import (
	"container/heap"
	"sync"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/outcome"
)

// kept holds the last ends of connections with a problem (see conn.Flags), since other connections would soon displace
// them from the rings. When kept is full, it removes the oldest end of the largest share. So no service port and no
// kind of failure displaces the others.
type kept struct {
	max int

	mu     sync.Mutex
	count  int
	shares map[share]*shared
	bySize sizes
	lost   int64 // latest time of a removed end, among shares that no longer exist; 0 for none
}

// share is the common property of ends that displace each other.
type share struct {
	port  config.PortID
	flags conn.Flags
	fault outcome.Fault // of failed connections only: refused clients must not displace failures of endpoints
}

// shared holds the ends of a share, oldest first.
type shared struct {
	share
	place int // index in bySize
	ends  []record
	lost  int64 // time of the end removed last; 0 for none
}

// add keeps r, the end of a connection with a problem.
func (k *kept) add(r record, how *conn.Ending) {
	if k.max <= 0 {
		return
	}
	of := share{port: r.of.Port.ID, flags: how.Flags}
	if how.Flags&conn.Broken != 0 {
		of.fault = how.Outcome.Fault()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.shares[of]
	if s == nil {
		s = &shared{share: of}
		k.shares[of] = s
		heap.Push(&k.bySize, s)
	}
	s.ends = append(s.ends, r)
	heap.Fix(&k.bySize, s.place)
	if k.count++; k.count > k.max {
		k.removeOne()
	}
}

func (k *kept) removeOne() {
	s := k.bySize[0]
	s.lost = s.ends[0].time
	s.ends[0] = record{} // releases the connection's Record
	s.ends = s.ends[1:]
	k.count--
	if len(s.ends) == 0 {
		k.lost = max(k.lost, s.lost)
		heap.Pop(&k.bySize)
		delete(k.shares, s.share)
		return
	}
	heap.Fix(&k.bySize, 0)
}

// each calls f for all kept ends, unordered, until f returns false.
func (k *kept) each(f func(r record) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range k.bySize {
		for _, r := range s.ends {
			if !f(r) {
				return
			}
		}
	}
}

// find returns the end of the connection with number id, if it is kept.
func (k *kept) find(id uint64) (found record) {
	k.each(func(r record) bool {
		if r.of.ID == id {
			found = r
		}
		return found.of == nil
	})
	return found
}

// reaches returns the time since which all ends are kept, among service ports for which match returns true.
func (k *kept) reaches(match func(config.PortID) bool) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	since := k.lost
	for _, s := range k.bySize {
		if match(s.port) {
			since = max(since, s.lost)
		}
	}
	return since
}

// sizes is a heap (container/heap) with the largest share first.
type sizes []*shared

func (s sizes) Len() int           { return len(s) }
func (s sizes) Less(i, j int) bool { return len(s[i].ends) > len(s[j].ends) }
func (s sizes) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].place, s[j].place = i, j
}

func (s *sizes) Push(x any) {
	x.(*shared).place = len(*s)
	*s = append(*s, x.(*shared))
}

func (s *sizes) Pop() any {
	last := len(*s) - 1
	x := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	return x
}

// Reaches has the times since which a Log has all ended connections.
type Reaches struct {
	All   time.Time // with or without a problem
	Amiss time.Time // with a problem (see conn.Flags); never later than All
}
