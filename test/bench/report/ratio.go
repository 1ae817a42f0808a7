package report

import (
	"fmt"
	"maps"
	"slices"
)

// Spread is a median over rounds, with the minimum and maximum.
type Spread struct {
	Median, Min, Max float64
	Rounds           int // 0: no values
}

func spread(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	slices.Sort(values)
	n := len(values)
	return Spread{Median: (values[(n-1)/2] + values[n/2]) / 2, Min: values[0], Max: values[n-1], Rounds: n}
}

// Over returns the spread of a quantity over all rounds.
func (r Results) Over(figure, peer string, q Quantity) Spread {
	var values []float64
	for _, m := range r {
		if v, ok := m.Values[q]; ok && m.Figure == figure && m.Peer == peer {
			values = append(values, v)
		}
	}
	return spread(values)
}

// Ratio returns the ratio of a quantity between two peers, calculated in each round that has both: load on the machine
// affects both in the same round. A negative value has no ratio: a connection's system memory is negative if another
// program freed memory meanwhile.
func (r Results) Ratio(figure, peer, to string, q Quantity) Spread {
	var ratios []float64
	for round := 1; round <= r.lastRound(); round++ {
		a, okA := r.Find(figure, peer, round)[q]
		b, okB := r.Find(figure, to, round)[q]
		if okA && okB && a >= 0 && b > 0 {
			ratios = append(ratios, a/b)
		}
	}
	return spread(ratios)
}

// OwnRatio returns the ratio of two quantities of the same measurement.
func (r Results) OwnRatio(figure, peer string, q, to Quantity) Spread {
	var ratios []float64
	for _, m := range r {
		if b := m.Values[to]; m.Figure == figure && m.Peer == peer && b != 0 {
			ratios = append(ratios, m.Values[q]/b)
		}
	}
	return spread(ratios)
}

// greatest returns the maximum of a quantity among all peers.
func (r Results) greatest(figure string, q Quantity) (most float64) {
	for _, m := range r {
		if m.Figure == figure {
			most = max(most, m.Values[q])
		}
	}
	return most
}

// peers returns the peers that have results for a figure or, if that is "", for any figure, in the order of
// measurement.
func (r Results) peers(figure string) (all []string) {
	for _, m := range r {
		if (figure == "" || m.Figure == figure) && !slices.Contains(all, m.Peer) {
			all = append(all, m.Peer)
		}
	}
	return all
}

// failed reports whether any measurement of a figure failed.
func (r Results) failed(figure, peer string) bool {
	return slices.ContainsFunc(r, func(m Result) bool { return m.Figure == figure && m.Peer == peer && m.Failed != "" })
}

// lastRound returns the number of the last round of all.
func (r Results) lastRound() (last int) {
	for _, m := range r {
		last = max(last, m.Round)
	}
	return last
}

// rounds returns the number of rounds of a figure: "6 rounds", or "6 to 30 rounds" if some peers took part in more of
// them.
func (r Results) rounds(figure string) string {
	of := map[string]int{}
	for _, m := range r {
		if m.Figure == figure {
			of[m.Peer]++
		}
	}
	counts := slices.Sorted(maps.Values(of))
	least, most := counts[0], counts[len(counts)-1]
	switch {
	case most == 1:
		return "One round"
	case least == most:
		return fmt.Sprintf("%d rounds", most)
	}
	return fmt.Sprintf("%d to %d rounds", least, most)
}
