package diagnose

import (
	"cmp"
	"slices"

	"github.com/usherproxy/usher/cmd/internal/show"
)

// OnNode are the findings about the usher instance of a node.
type OnNode struct {
	Node string
	Result
}

// Together merges the findings of nodes: equal findings are listed once, with their nodes and the evidence
// of the first node.
func Together(all []OnNode) (sum Result) {
	sum.Findings = []Found{}
	for _, on := range all {
		for _, f := range on.Findings {
			i := slices.IndexFunc(sum.Findings, func(s Found) bool {
				return s.Check == f.Check && s.Severity == f.Severity && s.Object == f.Object && s.Over == f.Over && s.Wrong == f.Wrong && s.Remedy == f.Remedy
			})
			if i < 0 {
				i = len(sum.Findings)
				sum.Findings = append(sum.Findings, f)
			}
			if len(sum.Findings[i].Nodes) > 0 && f.Clients < everyone {
				sum.Findings[i].Clients += f.Clients
			}
			sum.Findings[i].Nodes = append(sum.Findings[i].Nodes, on.Node)
		}
		sum.Looked = on.Looked
		sum.Services, sum.All = max(sum.Services, on.Services), max(sum.All, on.All)
	}
	sum.sort()
	return sum
}

// sort sorts past findings last and notes before them. Findings that affect most clients come first, then the most
// severe, and among these the findings of most nodes.
func (r *Result) sort() {
	rank := func(f Found) int { return slices.Index(severities, f.Severity) }
	late := func(f Found) int {
		switch {
		case f.Over:
			return 2
		case f.Severity == Note:
			return 1
		}
		return 0
	}
	slices.SortStableFunc(r.Findings, func(a, b Found) int {
		return cmp.Or(cmp.Compare(late(a), late(b)), cmp.Compare(b.Clients, a.Clients), cmp.Compare(rank(a), rank(b)),
			cmp.Compare(a.Object, b.Object), cmp.Compare(len(b.Nodes), len(a.Nodes)))
	})
}

// on returns the nodes of a finding as text.
func (f Found) on() string {
	if len(f.Nodes) == 1 {
		return "node " + show.Clean(f.Nodes[0])
	}
	return show.Plural(len(f.Nodes), "node") + ": " + show.Few(f.Nodes)
}
