package balance

// random selects at random, by weight. The result depends only on the turn, so Peek can predict it.
type random struct{ shares }

func newRandom(s *Set) order { return &random{sharesOf(s)} }

func (r *random) look(s *Set, l look, i uint32) *Endpoint {
	return s.endpoints[r.draw(mix(uint64(l.turn+i)))]
}
