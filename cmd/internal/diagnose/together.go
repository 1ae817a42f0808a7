package diagnose

import (
	"cmp"
	"math"
	"regexp"
	"slices"
	"strconv"

	"github.com/usherproxy/usher/cmd/internal/show"
)

// OnNode are the findings about the usher instance of a node.
type OnNode struct {
	Node string
	Result
}

// count matches a number and the noun after it, whose singular it captures. It does not match numbers in names and
// addresses.
var count = regexp.MustCompile(`(^| )(\d+)( \w+?)s?\b`)

// counted returns the first count in a text and its position, or -1 for both.
func counted(text string) (n, at int) {
	loc := count.FindStringSubmatchIndex(text)
	if loc == nil {
		return -1, -1
	}
	n, _ = strconv.Atoi(text[loc[4]:loc[5]])
	return n, loc[4]
}

// Together merges the findings of nodes: it lists findings once that are equal except for counts and severity. A merged
// finding has its nodes, the worst severity, the largest count, the sum of failures, and the evidence of the first
// node.
func Together(all []OnNode) (sum Result) {
	sum.Findings = []Found{}
	type kind struct {
		check, object, wrong, remedy string
		over                         bool
	}
	known := map[kind]int{}
	var most []string // of each finding, the text with the largest count
	for _, on := range all {
		for _, f := range on.Findings {
			k := kind{f.Check, f.Object, count.ReplaceAllString(f.Wrong, "$1$3"), f.Remedy, f.Over}
			i, is := known[k]
			if !is {
				i = len(sum.Findings)
				known[k] = i
				sum.Findings, most = append(sum.Findings, f), append(most, f.Wrong)
			}
			s := &sum.Findings[i]
			if !f.Since.IsZero() && (s.Since.IsZero() || f.Since.Before(s.Since)) {
				s.Since = f.Since
			}
			if len(s.Nodes) > 0 {
				s.Failures += f.Failures
			}
			if rank(f) < rank(*s) {
				s.Severity = f.Severity
			}
			if f.Wrong != most[i] {
				n, _ := counted(f.Wrong)
				before, at := counted(most[i])
				if n > before {
					most[i] = f.Wrong
					_, at = counted(f.Wrong)
				}
				s.Wrong = most[i][:at] + "up to " + most[i][at:]
			}
			s.Nodes = append(s.Nodes, on.Node)
		}
		sum.Looked = on.Looked
		sum.Services, sum.All = max(sum.Services, on.Services), max(sum.All, on.All)
	}
	sum.sort()
	return sum
}

// rank returns the position of a finding's severity, the worst first.
func rank(f Found) int { return slices.Index(severities, f.Severity) }

// sort puts past findings last, and other notes just before them. Within each part, findings are sorted by failures,
// the most first, then by severity, object, and number of nodes. A Failing finding without known failures counts as
// affecting all connections: portal rules refuse connections without counting them.
func (r *Result) sort() {
	late := func(f Found) int {
		switch {
		case f.Over:
			return 2
		case f.Severity == Note:
			return 1
		}
		return 0
	}
	affected := func(f Found) int64 {
		if f.Severity == Failing && f.Failures == 0 {
			return math.MaxInt64
		}
		return f.Failures
	}
	slices.SortStableFunc(r.Findings, func(a, b Found) int {
		return cmp.Or(cmp.Compare(late(a), late(b)), cmp.Compare(affected(b), affected(a)), cmp.Compare(rank(a), rank(b)),
			cmp.Compare(a.Object, b.Object), cmp.Compare(len(b.Nodes), len(a.Nodes)))
	})
}

// on describes the nodes of a finding: "node a", or "2 nodes: a, b".
func (f Found) on() string {
	if len(f.Nodes) == 1 {
		return "node " + show.Clean(f.Nodes[0])
	}
	return show.Plural(len(f.Nodes), "node") + ": " + show.Few(f.Nodes)
}
