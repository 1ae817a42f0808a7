package balance

import (
	"slices"
	"sync/atomic"
)

// maglevSizes are the table sizes, which are primes. The first one with at least slotsPerEndpoint slots per endpoint is
// used; with more than 1,024 endpoints, the last. The size depends only on the number of endpoints, so that all nodes
// have the same table. When the number crosses a limit and the size changes, almost all clients move.
var maglevSizes = []int{1021, 4093, 16381, 65537}

const slotsPerEndpoint = 64

// maglev hashes the client's address into a table in which each endpoint has slots in proportion to its
// weight. Most slots keep their endpoint when one is added or removed (D. Eisenbud et al., "Maglev: A Fast
// and Reliable Software Network Load Balancer", NSDI 2016, section 3.4).
type maglev struct {
	slots atomic.Pointer[[]uint16] // the table, nil before it is needed
}

// newMaglev makes the table at once if the previous Set had one; otherwise the first choice makes it. A table takes up
// to a few milliseconds. So an event loop does not wait for it after a change, and a change does not wait for hundreds
// of tables that no client uses.
func newMaglev(s *Set) order {
	m := new(maglev)
	if previous, is := s.order.(*maglev); is && previous.slots.Load() != nil && len(s.endpoints) > 0 {
		m.makeSlots(s)
	}
	return m
}

// maxMaglev is the maximum number of endpoints with slots: half the number of slots of the largest table.
const maxMaglev = 1 << 15

// makeSlots makes the table of a Set that has endpoints, and returns it. Each slot is the index of an endpoint;
// endpoints beyond the first maxMaglev have no slots. Two concurrent calls make the same table.
func (m *maglev) makeSlots(s *Set) *[]uint16 {
	n := min(len(s.endpoints), maxMaglev)
	size := maglevSizes[len(maglevSizes)-1]
	for _, fits := range maglevSizes {
		if n*slotsPerEndpoint <= fits {
			size = fits
			break
		}
	}
	type preference struct {
		at, skip      int // the next slot to take, and the distance to the one after
		weight, turns int
	}
	wants := make([]preference, n)
	most := 1
	for i, e := range s.endpoints[:n] {
		h := hash(e.Addr.Addr(), uint32(e.Addr.Port()))
		wants[i] = preference{at: int(h % uint64(size)), skip: int(mix(h)%uint64(size-1)) + 1, weight: int(weight(e.Endpoint))}
		most = max(most, wants[i].weight)
	}
	const free = 1<<16 - 1
	slots := make([]uint16, size)
	for i := range slots {
		slots[i] = free
	}
	// An endpoint with the greatest weight takes a slot in each round, one with half that weight in every second round,
	// and so on. No weight is below 1, so the distance to an endpoint's next turn, in rounds, is at most the greatest
	// weight.
	rounds := make([][]int, most+1) // the endpoints with a turn in each of the next rounds
	plan := func(i int) {
		w := &wants[i]
		w.turns++
		round := (w.turns*most + w.weight - 1) / w.weight % len(rounds)
		rounds[round] = append(rounds[round], i)
	}
	for i := range wants {
		plan(i)
	}
	for left, round := size, 1; ; round++ {
		now := &rounds[round%len(rounds)]
		slices.Sort(*now)
		for _, i := range *now {
			w := &wants[i]
			for slots[w.at] != free {
				w.at = (w.at + w.skip) % size
			}
			slots[w.at] = uint16(i)
			if left--; left == 0 {
				m.slots.Store(&slots)
				return &slots
			}
			plan(i)
		}
		*now = (*now)[:0]
	}
}

func (m *maglev) look(s *Set, l look, i uint32) *Endpoint {
	slots := m.slots.Load()
	if slots == nil {
		slots = m.makeSlots(s)
	}
	return s.endpoints[(*slots)[hash(l.Client, i)%uint64(len(*slots))]]
}
