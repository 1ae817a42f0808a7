package cluster

import (
	"context"
	"time"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// fleet is the state of all nodes.
type fleet struct {
	asked  time.Time // when the round that queried the nodes began
	nodes  []Node
	status []answerOf[availability]
}

// availability is the state of usher on a node, with the Services that have the most failed connections there.
type availability struct {
	api.Status
	failed []api.Service
}

// fleet returns the state of all nodes.
func (v *View) fleet(ctx context.Context) (fleet, error) {
	return ask(ctx, v, "nodes", minFresh, func(ctx context.Context) (fleet, error) {
		nodes, err := v.nodes(ctx)
		if err != nil {
			return fleet{}, err
		}
		f := fleet{asked: time.Now(), nodes: nodes}
		f.status = each(ctx, v, nodes, func(ctx context.Context, n Node) (s availability, err error) {
			if s.Status, err = n.Client.Status(ctx); err != nil {
				return s, err
			}
			list, err := n.Client.Services(ctx, client.ServiceQuery{Sort: api.SortFailed, Max: mostFailed})
			s.failed = list.Items
			return s, err
		})
		return f, ctx.Err()
	})
}

// Nodes returns the nodes with the state of usher on each.
func (v *View) Nodes(ctx context.Context) (list api.ClusterNodeList, err error) {
	f, err := v.fleet(ctx)
	if err != nil {
		return list, err
	}
	list = api.ClusterNodeList{Asked: f.asked, Items: make([]api.ClusterNode, 0, len(f.nodes))}
	for i, n := range f.nodes {
		out := api.ClusterNode{Name: n.Name}
		if s := &f.status[i]; s.err != nil {
			out.Error = client.Cause(s.err)
		} else {
			out.Version, out.PortalMode = s.answer.Version, s.answer.PortalMode
			out.Problems, out.Attention = len(s.answer.Problems)+s.answer.ProblemsOmitted, s.answer.Attention
			out.Since = s.answer.Since
			out.Totals = &s.answer.Totals
		}
		list.Items = append(list.Items, out)
	}
	return list, nil
}
