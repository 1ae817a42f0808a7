package cluster

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
	"unique"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// Limits of the data of one Service.
const (
	maxCells     = 250_000 // endpoints times nodes, when choosing the nodes to query; their answers may have twice as many
	maxEndpoints = 100     // in the answer
	maxColumns   = 50      // nodes in the answer
)

// Service returns a Service as each node sees it.
func (v *View) Service(ctx context.Context, namespace, name string) (api.ClusterServiceDetail, error) {
	key := namespace + "/" + name
	return ask(ctx, v, "service "+key, minFresh, func(ctx context.Context) (out api.ClusterServiceDetail, err error) {
		f, err := v.fleet(ctx)
		if err != nil {
			return out, err
		}
		out = api.ClusterServiceDetail{Asked: time.Now(), ClusterService: api.ClusterService{Namespace: namespace, Name: name, States: map[api.ServiceState]int{}}}
		summaries := each(ctx, v, f.nodes, func(ctx context.Context, n Node) (api.ServiceList, error) {
			return n.Client.Services(ctx, client.ServiceQuery{Names: []string{key}, Max: 1})
		})
		var know, silent []serviceNode
		answered := false
		for i, t := range summaries {
			switch {
			case t.err != nil:
				silent = append(silent, serviceNode{Node: f.nodes[i], err: t.err})
			case len(t.answer.Items) > 0:
				know = append(know, serviceNode{Node: f.nodes[i], service: t.answer.Items[0]})
				addService(&out.ClusterService, t.answer.Items[0])
				fallthrough
			default:
				answered = true
			}
		}
		switch {
		case ctx.Err() != nil:
			return out, ctx.Err()
		case !answered:
			return out, errNobody
		case len(know) == 0:
			return out, &api.Error{Code: http.StatusNotFound, Message: fmt.Sprintf("no usher instance serves a Service %s", key)}
		}
		out.Message = f.messages()[key].message
		queried := chosen(know, max(2, maxCells/max(1, out.EndpointCount)))
		out.NodesUnasked = len(know) - len(queried)
		g := v.read(ctx, queried, namespace, name)
		for _, n := range silent {
			g.nodes, g.cells = append(g.nodes, n), append(g.cells, nil)
		}
		g.fill(&out)
		return out, ctx.Err()
	})
}

// serviceNode is a node that knows a Service, or does not answer.
type serviceNode struct {
	Node
	service api.Service
	err     error
}

// chosen returns at most most nodes, sorted by name. One half has the most failed attempts. The other half has
// the most connections, and so the most data about endpoints.
func chosen(know []serviceNode, most int) []serviceNode {
	if len(know) <= most {
		return know
	}
	know = slices.Clone(know)
	by := func(list []serviceNode, of func(api.Totals) int64) {
		slices.SortStableFunc(list, func(a, b serviceNode) int { return cmp.Compare(of(b.service.Totals), of(a.service.Totals)) })
	}
	by(know, func(t api.Totals) int64 { return t.AttemptsFailed })
	by(know[most/2:], func(t api.Totals) int64 { return t.Established })
	know = know[:most]
	slices.SortFunc(know, func(a, b serviceNode) int { return cmp.Compare(a.Name, b.Name) })
	return know
}

// grid holds the data of some nodes about the endpoints of a Service.
type grid struct {
	nodes []serviceNode
	cells [][]api.ClusterCell // of each node; shorter than rows if it does not know the last of them

	most int // rows

	mu      sync.Mutex // guards the fields below
	rows    []api.ClusterEndpoint
	index   map[string]int // of rows, by address
	omitted int            // endpoints without a row, of the node with the most
}

// read queries nodes for the endpoints. It reduces the answers to cells as they arrive.
func (v *View) read(ctx context.Context, know []serviceNode, namespace, name string) *grid {
	g := &grid{nodes: slices.Clone(know), cells: make([][]api.ClusterCell, len(know)), index: map[string]int{}}
	g.most = 2 * maxCells / max(1, len(know)) // an answer may have other endpoints than those that the node counted before
	nodes := make([]Node, len(know))
	at := map[string]int{}
	for i, k := range know {
		nodes[i], at[k.Name] = k.Node, i
	}
	for i, t := range each(ctx, v, nodes, func(ctx context.Context, n Node) (struct{}, error) {
		detail, err := n.Client.Service(ctx, namespace, name)
		if err == nil {
			g.add(at[n.Name], detail)
		}
		return struct{}{}, err
	}) {
		g.nodes[i].err = t.err
	}
	return g
}

// add adds a node's answer. An endpoint of several ports and families counts once.
func (g *grid) add(node int, detail api.ServiceDetail) {
	g.mu.Lock()
	defer g.mu.Unlock()
	cells, omitted := make([]api.ClusterCell, len(g.rows)), 0
	for _, port := range detail.Details {
		for _, e := range port.Endpoints {
			row, known := g.index[e.Address]
			if !known && len(g.rows) >= g.most {
				omitted++
				continue
			}
			if !known {
				row = len(g.rows)
				g.index[e.Address] = row
				g.rows = append(g.rows, api.ClusterEndpoint{Address: e.Address, Pod: e.Pod, Node: e.Node})
			}
			for len(cells) <= row {
				cells = append(cells, api.ClusterCell{})
			}
			c := &cells[row]
			if c.State == "" || c.State == api.EndpointReady || e.State == api.EndpointQuarantined {
				c.State = unique.Make(e.State).Value() // shared: most cells have the same strings
			}
			if e.Latency != nil {
				c.Tried += int64(e.Latency.Clients)
				c.ConnectP99Ms = max(c.ConnectP99Ms, e.Latency.ConnectP99Ms)
			}
			c.Failed += e.FailedRecently
			c.Tried += e.FailedRecently
			if e.Quarantine != nil {
				c.Cause = unique.Make(e.Quarantine.Cause).Value()
			}
		}
	}
	for i := range cells {
		if c := &cells[i]; c.State != "" {
			c.Result = resultOf(c.State, c.Tried, c.Failed)
		}
	}
	g.cells[node], g.omitted = cells, max(g.omitted, omitted)
}

// cell returns one cell; the zero value if the node does not know the endpoint.
func (g *grid) cell(row, node int) (c api.ClusterCell) {
	if cells := g.cells[node]; row < len(cells) {
		return cells[row]
	}
	return c
}

// fill writes the results, and the causes of failures, to out.
func (g *grid) fill(out *api.ClusterServiceDetail) {
	verdict := judge(matrix{len(g.rows), len(g.nodes), func(row, node int) api.ClusterResult { return g.cell(row, node).Result }})
	columns := make([]api.ClusterColumn, len(g.nodes))
	for i, n := range g.nodes {
		k := verdict.columns[i]
		columns[i] = api.ClusterColumn{Name: n.Name, State: n.service.State, ClusterCounts: api.ClusterCounts{Bad: k.bad, Good: k.good}}
		if n.err != nil {
			columns[i].Error = client.Cause(n.err)
		}
		if k.fault {
			columns[i].Fault = api.FaultNode
		}
	}
	for row := range g.rows {
		e := &g.rows[row]
		k := verdict.rows[row]
		e.Bad, e.Good = k.bad, k.good
		if k.fault {
			e.Fault = api.FaultPod
		}
		for node := range g.nodes {
			c := g.cell(row, node)
			e.Tried += c.Tried
			e.Failed += c.Failed
			columns[node].Tried += c.Tried
			columns[node].Failed += c.Failed
		}
	}
	out.Findings, out.FindingsOmitted = findings(verdict, g.rows, columns)

	nodes := sorted(len(columns), maxColumns, func(a, b int) int {
		return byFault(verdict.columns[a], verdict.columns[b], columns[a].Name, columns[b].Name)
	})
	rows := sorted(len(g.rows), maxEndpoints, func(a, b int) int {
		x, y := &g.rows[a], &g.rows[b]
		return byFault(verdict.rows[a], verdict.rows[b], cmp.Or(x.Pod, x.Address), cmp.Or(y.Pod, y.Address))
	})
	out.NodesOmitted, out.EndpointsOmitted = len(columns)-len(nodes), len(g.rows)-len(rows)+g.omitted
	out.Nodes, out.Endpoints = []api.ClusterColumn{}, []api.ClusterEndpoint{}
	for _, node := range nodes {
		out.Nodes = append(out.Nodes, columns[node])
	}
	for _, row := range rows {
		e := g.rows[row]
		e.Cells = []api.ClusterCell{}
		for _, node := range nodes {
			e.Cells = append(e.Cells, g.cell(row, node))
		}
		out.Endpoints = append(out.Endpoints, e)
	}
}

// sorted returns the first of the numbers below n in the order of compare, at most most.
func sorted(n, most int, compare func(a, b int) int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	slices.SortFunc(list, compare)
	return list[:min(n, most)]
}
