package report

// ceiling is a calculated peer: the rate of a hypothetical proxy that copies nothing, decides nothing and collects
// nothing. Its two hops cost twice as much as one, so its rate is half of direct's.
const ceiling = "ceiling"

// withCeiling returns the results with the ceiling added after each measurement of direct.
func (r Results) withCeiling() (all Results) {
	for _, m := range r {
		all = append(all, m)
		if m.Peer != "direct" || m.Values[Due] > 0 { // at a constant rate all peers have the same one
			continue
		}
		half := Values{}
		for _, q := range []Quantity{Rate, Gbits} {
			if v, ok := m.Values[q]; ok {
				half[q] = v / 2
			}
		}
		if len(half) > 0 {
			all = append(all, Result{Figure: m.Figure, Peer: ceiling, Round: m.Round, Values: half})
		}
	}
	return all
}
