package fleet

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/proxy/admin/api"
)

// Reported is an item that the usher instance of a node reported, or that was merged from the reports of several nodes.
type Reported[T any] struct {
	Node string // "" for a merged item, and without a cluster
	Item T
	// Nodes has the state on each node, the worst first; empty unless the item was merged.
	Nodes []OnNode
	// Others is the number of nodes that responded without the item, if only items in some state were requested.
	Others int
}

// OnNode is the state of a Service or an endpoint in the usher instance of one node.
type OnNode struct {
	Node        string          `json:"node"`
	State       string          `json:"state"`
	Active      int64           `json:"active"`
	Connections int64           `json:"connections"` // to an endpoint, or from clients to a Service
	Failed      int64           `json:"failed"`
	Quarantine  *api.Quarantine `json:"quarantine,omitempty"`
}

// IsFrom reports whether the usher instance of a node has reported the item.
func (t Reported[T]) IsFrom(node string) bool {
	return t.Node == node || slices.ContainsFunc(t.Nodes, func(n OnNode) bool { return n.Node == node })
}

// Worst returns the nodes with the worst state, or nil if all nodes are in it.
func (t Reported[T]) Worst() (nodes []string) {
	for _, n := range t.Nodes {
		if n.State == t.Nodes[0].State {
			nodes = append(nodes, n.Node)
		}
	}
	if len(nodes) == len(t.Nodes)+t.Others {
		return nil
	}
	return nodes
}

// Services merges the reports about each Service: the worst state with its details, the sums of counts, and the longest
// latencies. The number of endpoints is that of the node with the fewest ready ones. Settings of ports that differ
// between nodes are left out. The order is that of first occurrence.
func Services(list []Reported[api.Service]) []Reported[api.Service] {
	return merge(list,
		func(s api.Service) string { return s.Namespace + "/" + s.Name },
		func(s api.Service) int { return s.State.Badness() },
		func(s api.Service) OnNode {
			return OnNode{State: string(s.State), Active: s.Totals.Active, Connections: s.Totals.Accepted, Failed: s.Totals.Failed}
		},
		func(sum *api.Service, s api.Service) {
			sum.Totals = sum.Totals.Plus(s.Totals)
			if s.State == sum.State && s.Since.Before(sum.Since) {
				sum.Since = s.Since
			}
			sum.Latency = longest(sum.Latency, s.Latency)
			if s.Endpoints.Ready < sum.Endpoints.Ready {
				sum.Endpoints = s.Endpoints
			}
			sum.Ports = withoutDifferences(sum.Ports, s.Ports)
			ends := map[string]int64{}
			for _, from := range []map[string]int64{sum.Ends, s.Ends} {
				for end, n := range from {
					ends[end] += n
				}
			}
			if len(ends) > 0 {
				sum.Ends = ends
			}
		})
}

// Endpoints merges the reports about each endpoint of a service port, as Services does.
func Endpoints(list []Reported[show.PortEndpoint]) []Reported[show.PortEndpoint] {
	return merge(list,
		func(e show.PortEndpoint) string {
			return e.Namespace + "/" + e.Service + ":" + e.Port + "/" + e.Protocol + "/" + e.Address
		},
		func(e show.PortEndpoint) int { return e.State.Badness() },
		func(e show.PortEndpoint) OnNode {
			return OnNode{State: string(e.State), Active: e.Active, Connections: e.Connected, Failed: e.Failed, Quarantine: e.Quarantine}
		},
		func(sum *show.PortEndpoint, e show.PortEndpoint) {
			sum.Active += e.Active
			if e.State == sum.State && e.Since.Before(sum.Since) {
				sum.Since = e.Since
			}
			sum.Limit += e.Limit
			sum.Connected += e.Connected
			sum.Failed += e.Failed
			sum.FailedRecently += e.FailedRecently
			sum.NoResponse += e.NoResponse
			sum.NoResponseRecently += e.NoResponseRecently
			sum.WaitingLong += e.WaitingLong
			sum.BytesToEndpoint += e.BytesToEndpoint
			sum.BytesToClient += e.BytesToClient
			sum.Latency = longest(sum.Latency, e.Latency)
			sum.UsedFor = slices.Clone(sum.UsedFor)
			for _, use := range e.UsedFor {
				if !slices.Contains(sum.UsedFor, use) {
					sum.UsedFor = append(sum.UsedFor, use)
				}
			}
			switch {
			case sum.NotUsed == "" || e.NotUsed == "": // a node uses it
				sum.NotUsed = ""
			case sum.NotUsed != e.NotUsed:
				sum.NotUsed = "differs by node"
			}
		})
}

// withoutDifferences returns ports without the settings of a node that differ from those of another node.
func withoutDifferences(ports, others []api.PortSummary) []api.PortSummary {
	ports = slices.Clone(ports)
	for i := range ports {
		p := &ports[i]
		for _, o := range others {
			if o.Name != p.Name || o.Family != p.Family || o.Protocol != p.Protocol {
				continue
			}
			leaveOut(&p.Listener, o.Listener)
			leaveOut(&p.Sees, o.Sees)
			leaveOut(&p.Topology, o.Topology)
			p.Settings = maps.Clone(p.Settings)
			maps.DeleteFunc(p.Settings, func(name, text string) bool { return o.Settings[name] != text })
			leaveOut(&p.ProxyProtocol, o.ProxyProtocol)
		}
	}
	return ports
}

// leaveOut sets p to the zero value if it differs from other.
func leaveOut[T any](p *T, other T) {
	if !reflect.DeepEqual(*p, other) {
		*p = *new(T)
	}
}

// merge merges items with the same key. It starts with the worst one, that with the highest rank, and add adds the
// others. on returns the state for Reported.Nodes.
func merge[T any](list []Reported[T], key func(T) string, rank func(T) int, on func(T) OnNode, add func(sum *T, item T)) (merged []Reported[T]) {
	same := map[string][]Reported[T]{}
	var keys []string
	for _, t := range list {
		k := key(t.Item)
		if same[k] == nil {
			keys = append(keys, k)
		}
		same[k] = append(same[k], t)
	}
	for _, k := range keys {
		all := same[k]
		slices.SortStableFunc(all, func(a, b Reported[T]) int { return -cmp.Compare(rank(a.Item), rank(b.Item)) })
		sum := Reported[T]{Item: all[0].Item}
		for i, t := range all {
			if i > 0 {
				add(&sum.Item, t.Item)
			}
			how := on(t.Item)
			how.Node = t.Node
			sum.Nodes = append(sum.Nodes, how)
		}
		merged = append(merged, sum)
	}
	return merged
}

// longest returns the maximum of each percentile: a percentile of all nodes cannot be computed from those of each node.
// The number of clients is the sum.
func longest(a, b *api.Latency) *api.Latency {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return &api.Latency{
		Clients:      a.Clients + b.Clients,
		ConnectP50Ms: max(a.ConnectP50Ms, b.ConnectP50Ms), ConnectP99Ms: max(a.ConnectP99Ms, b.ConnectP99Ms),
		FirstByteP50Ms: max(a.FirstByteP50Ms, b.FirstByteP50Ms), FirstByteP99Ms: max(a.FirstByteP99Ms, b.FirstByteP99Ms),
	}
}
