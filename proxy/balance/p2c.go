package balance

// powerOfTwo draws two endpoints, by weight, and takes the one with fewer connections for its weight. This is
// close to the least load, without looking at all endpoints (M. Mitzenmacher, "The Power of Two Choices in Randomized
// Load Balancing", 2001).
type powerOfTwo struct{ shares }

func newPowerOfTwo(s *Set) order { return &powerOfTwo{sharesOf(s)} }

func (p *powerOfTwo) look(s *Set, l look, i uint32) *Endpoint {
	// If i is even, return the less loaded of two endpoints, otherwise the other one.
	random := mix(uint64(l.turn + i&^1))
	first := p.draw(random)
	second := p.draw(mix(random))
	if second == first {
		second = (first + 1) % len(s.endpoints)
	}
	a, b := s.endpoints[first], s.endpoints[second]
	if uint64(b.Active.Load())*weight(a.Endpoint) < uint64(a.Active.Load())*weight(b.Endpoint) {
		a, b = b, a
	}
	if i&1 == 1 {
		return b
	}
	return a
}
