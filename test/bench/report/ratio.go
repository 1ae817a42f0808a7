package report

import "slices"

// Spread is a median over rounds, with the least and the greatest.
type Spread struct {
	Median, Min, Max float64
	Rounds           int // 0: there is none
}

func spread(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	slices.Sort(values)
	n := len(values)
	return Spread{Median: (values[(n-1)/2] + values[n/2]) / 2, Min: values[0], Max: values[n-1], Rounds: n}
}

// Over returns a quantity over all rounds.
func (r Results) Over(figure, peer string, q Quantity) Spread {
	var values []float64
	for _, m := range r {
		if v, ok := m.Values[q]; ok && m.Figure == figure && m.Peer == peer {
			values = append(values, v)
		}
	}
	return spread(values)
}

// Ratio returns the ratio of a quantity between two peers, taken in each round
// that has both: what a busy machine does to one round it does to both.
func (r Results) Ratio(figure, peer, to string, q Quantity) Spread {
	var ratios []float64
	for round := 1; round <= r.rounds(); round++ {
		a, okA := r.Find(figure, peer, round)[q]
		b, okB := r.Find(figure, to, round)[q]
		if okA && okB && b != 0 {
			ratios = append(ratios, a/b)
		}
	}
	return spread(ratios)
}

func (r Results) rounds() (last int) {
	for _, m := range r {
		last = max(last, m.Round)
	}
	return last
}
