package balance

import (
	"math/bits"
	"sort"

	"github.com/usherproxy/usher/config"
)

// shares divides a Set into numbered shares. An endpoint with weight w has w consecutive shares.
type shares struct {
	endpoints int
	ends      []uint32 // where each endpoint's range ends; nil if all have the same weight
}

func sharesOf(s *Set) shares {
	sh := shares{endpoints: len(s.endpoints)}
	same := true
	for _, e := range s.endpoints {
		same = same && e.Weight == s.endpoints[0].Weight
	}
	if same {
		return sh
	}
	end := uint32(0)
	for _, e := range s.endpoints {
		end += uint32(weight(e.Endpoint))
		sh.ends = append(sh.ends, end)
	}
	return sh
}

// weight returns the weight of an endpoint, at least 1.
func weight(e *config.Endpoint) uint64 { return uint64(max(e.Weight.Int(), 1)) }

func (sh *shares) total() uint64 {
	if sh.ends == nil {
		return uint64(sh.endpoints)
	}
	return uint64(sh.ends[sh.endpoints-1])
}

// at returns the endpoint index of the n-th share.
func (sh *shares) at(n uint64) int {
	if sh.ends == nil {
		return int(n)
	}
	return sort.Search(sh.endpoints, func(i int) bool { return n < uint64(sh.ends[i]) })
}

// draw returns the endpoint index for a random number.
func (sh *shares) draw(random uint64) int {
	n, _ := bits.Mul64(random, sh.total())
	return sh.at(n)
}

// mix maps different numbers to different results, which look random: the finalizer of splitmix64,
// https://prng.di.unimi.it/splitmix64.c.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

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
