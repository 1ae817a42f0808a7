package balance

// newRoundRobin returns an order that gives each endpoint one connection in rotation. With weights, each gets as many
// as its weight, interleaved.
func newRoundRobin(s *Set) order {
	if shares := sharesOf(s); shares.ends != nil {
		return &weightedRoundRobin{shares, strideFor(shares.total())}
	}
	return nil
}

// weightedRoundRobin steps through all shares in strides of about 0.618 times their number, which spreads the shares of
// each endpoint evenly. In as many turns as there are shares, each share gets one turn.
type weightedRoundRobin struct {
	shares
	stride uint64 // coprime to the number of shares
}

func (w *weightedRoundRobin) look(s *Set, l look, i uint32) *Endpoint {
	return s.endpoints[w.at(uint64(l.turn+i)*w.stride%w.total())]
}

// strideFor returns a stride through n shares.
func strideFor(n uint64) uint64 {
	stride := max(1, n*618/1000)
	for gcd(stride, n) != 1 {
		stride++
	}
	return stride
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
