package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// A cell is bad if the state of its endpoint is a failure. It also is bad if there were at least enoughTried
// attempts, and at least one in oneIn failed.
const (
	enoughTried = 10
	oneIn       = 10
)

const maxFindings = 10

// resultOf returns the result of connections to an endpoint in a state, after the given numbers of tried and failed
// attempts by clients. Probes matter only through the state.
func resultOf(state api.EndpointState, tried, failed int64) api.ClusterResult {
	switch {
	case state.Failing():
		return api.ResultBad
	case oneIn*failed < tried:
		return api.ResultGood
	case tried >= enoughTried:
		return api.ResultBad
	}
	return api.ResultUnknown
}

// matrix holds the results of endpoints (rows) on nodes (columns).
type matrix struct {
	rows, columns int
	at            func(row, column int) api.ClusterResult
}

// verdict names the lines of a matrix that cause the failures.
type verdict struct {
	rows, columns []counts
	all           bool     // everything is bad: no single line is the cause
	order         []line   // the causes, most certain first
	pairs         [][2]int // bad cells outside these lines, in rows that have good cells
	unclear       [][2]int // the other bad cells outside these lines
}

// line is a row or a column.
type line struct {
	column bool
	index  int
}

// counts are those of a line.
type counts struct {
	bad, good int
	fault     bool
}

// most reports whether more than half of the known cells of a line are bad, and at least two.
func (c counts) most() bool { return c.bad >= 2 && c.bad > c.good }

// judge finds a few lines that explain most bad cells. It repeatedly takes the line with the largest share of bad
// cells, and removes its cells from the lines that cross it. So a node that reaches no Pod does not make every
// Pod look bad, nor does a dead Pod make every node look bad.
func judge(m matrix) (v verdict) {
	v.rows, v.columns = make([]counts, m.rows), make([]counts, m.columns)
	var bad [][2]int
	good := 0
	for r := range m.rows {
		for c := range m.columns {
			switch m.at(r, c) {
			case api.ResultBad:
				v.rows[r].bad++
				v.columns[c].bad++
				bad = append(bad, [2]int{r, c})
			case api.ResultGood:
				v.rows[r].good++
				v.columns[c].good++
				good++
			}
		}
	}
	examined := func(lines []counts) (n int) {
		for _, l := range lines {
			if l.bad+l.good > 0 {
				n++
			}
		}
		return n
	}
	if good == 0 && examined(v.rows) > 1 && examined(v.columns) > 1 {
		v.all = true
		return v
	}
	left := struct{ rows, columns []counts }{slices.Clone(v.rows), slices.Clone(v.columns)}
	for {
		worst, is := line{}, counts{}
		better := func(c counts) bool { // a larger share of bad cells, or an equal share and more of them
			a, b := c.bad*(is.bad+is.good), is.bad*(c.bad+c.good)
			return c.most() && (is.bad == 0 || a > b || a == b && c.bad > is.bad)
		}
		for r, c := range left.rows {
			if !v.rows[r].fault && better(c) {
				worst, is = line{false, r}, c
			}
		}
		for i, c := range left.columns {
			// Without a good cell on another node, the Pods may be the cause.
			if !v.columns[i].fault && good > v.columns[i].good && better(c) {
				worst, is = line{true, i}, c
			}
		}
		if is.bad == 0 {
			break
		}
		v.order = append(v.order, worst)
		if worst.column {
			v.columns[worst.index].fault = true
			for r := range m.rows {
				left.rows[r].leave(m.at(r, worst.index))
			}
			continue
		}
		v.rows[worst.index].fault = true
		for c := range m.columns {
			left.columns[c].leave(m.at(worst.index, c))
		}
	}
	for _, at := range bad {
		switch r, c := v.rows[at[0]], v.columns[at[1]]; {
		case r.fault || c.fault:
		case r.good > 0:
			v.pairs = append(v.pairs, at)
		default:
			v.unclear = append(v.unclear, at)
		}
	}
	return v
}

// leave removes a cell that another line explains.
func (c *counts) leave(r api.ClusterResult) {
	switch r {
	case api.ResultBad:
		c.bad--
	case api.ResultGood:
		c.good--
	}
}

// findings describes a verdict in sentences, most certain first, and returns the number of further ones.
func findings(v verdict, endpoints []api.ClusterEndpoint, nodes []api.ClusterColumn) (list []api.ClusterFinding, omitted int) {
	list = []api.ClusterFinding{}
	add := func(fault api.ClusterFault, row, column int, format string, args ...any) {
		if len(list) == maxFindings {
			omitted++
			return
		}
		f := api.ClusterFinding{Fault: fault, Text: fmt.Sprintf(format, args...)}
		if row >= 0 {
			f.Endpoint = endpoints[row].Address
		}
		if column >= 0 {
			f.Node = nodes[column].Name
		}
		list = append(list, f)
	}
	if v.all {
		add(api.FaultAll, -1, -1, "Every endpoint fails on every node that had connections. The cause is shared by all, such as the application, a NetworkPolicy or the network.")
	}
	for _, l := range v.order {
		if l.column {
			add(api.FaultNode, -1, l.index, "The cause is node %s: %s endpoints fail from there, and connections from other nodes succeed.", nodes[l.index].Name, v.columns[l.index].part())
			continue
		}
		others := ""
		if slices.ContainsFunc(v.rows, func(c counts) bool { return !c.fault && c.good > 0 }) {
			others = ", and other endpoints respond"
		}
		add(api.FaultPod, l.index, -1, "The cause is %s: connections from %s nodes to it fail%s.", the(endpoints[l.index]), v.rows[l.index].part(), others)
	}
	for _, at := range v.pairs {
		others := "another node reaches"
		if n := v.rows[at[0]].good; n > 1 {
			others = fmt.Sprintf("%d other nodes reach", n)
		}
		if v.columns[at[1]].good > 0 {
			add(api.FaultPath, at[0], at[1], "The cause is the path from node %s to %s: %s it, and the node reaches other endpoints.", nodes[at[1]].Name, the(endpoints[at[0]]), others)
			continue
		}
		add(api.FaultPath, at[0], at[1], "The cause is node %s or its path to %s: %s it. Compare other Services on that node.", nodes[at[1]].Name, the(endpoints[at[0]]), others)
	}
	for _, at := range v.unclear {
		add(api.FaultUnclear, at[0], at[1], "Connections from node %s to %s fail. There were too few other connections to determine which of the two is the cause.", nodes[at[1]].Name, the(endpoints[at[0]]))
	}
	return list, omitted
}

// the names an endpoint.
func the(e api.ClusterEndpoint) string {
	if e.Pod == "" {
		return "the endpoint " + e.Address
	}
	return "the Pod " + e.Pod[strings.IndexByte(e.Pod, '/')+1:] + " (" + e.Address + ")"
}

// part returns "3 of 4", the bad and the known cells.
func (c counts) part() string {
	if c.good == 0 {
		return fmt.Sprintf("all %d", c.bad)
	}
	return fmt.Sprintf("%d of %d", c.bad, c.bad+c.good)
}

// byFault sorts lines: causes first, then those with the most bad cells, then by name, web-2 before web-10.
func byFault(a, b counts, nameA, nameB string) int {
	rank := func(c counts) int {
		if c.fault {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(rank(b), rank(a)), cmp.Compare(b.bad, a.bad), cmp.Compare(len(nameA), len(nameB)), cmp.Compare(nameA, nameB))
}
