package balance

// random leaves it to chance, by weight. What chance says depends on nothing but the turn: so
// it can be told beforehand.
type random struct{ shares }

func newRandom(s *Set) order { return &random{sharesOf(s)} }

func (r *random) look(s *Set, l look, i uint32) *Endpoint {
	return s.endpoints[r.draw(mix(uint64(l.turn+i)))]
}

func (*random) reason() Reason { return ByChance }
