package fleet

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/proxy/admin/api"
)

// MarshalJSON implements json.Marshaler: the item's fields, preceded by node, that of the usher instance, or nodes. An
// endpoint already has the field node, its Pod's: there, the instance's is usherNode.
func (t Reported[T]) MarshalJSON() ([]byte, error) {
	item, err := json.Marshal(t.Item)
	if err != nil || t.Node == "" && t.Nodes == nil {
		return item, err
	}
	name, value := "node", any(t.Node)
	if _, own := any(t.Item).(show.PortEndpoint); own {
		name = "usherNode"
	}
	if t.Nodes != nil {
		name, value = "nodes", t.Nodes
	}
	head, err := json.Marshal(map[string]any{name: value})
	if err != nil {
		return nil, err
	}
	return append(append(bytes.TrimSuffix(head, []byte("}")), ','), bytes.TrimPrefix(item, []byte("{"))...), nil
}

// Columns returns the columns of a table of reported items, given those of the items. It adds NODE, the node that
// reported the item. For merged items, NODE lists the nodes with the item's state, and STATE includes their number.
func Columns[T any](columns []show.Column[T], together bool) []show.Column[Reported[T]] {
	node := show.Column[Reported[T]]{Title: "NODE", Some: true, Least: 12, Cell: func(t Reported[T]) string {
		if t.Node != "" {
			return show.Clean(t.Node)
		}
		return cmp.Or(show.Few(t.Worst()), "-")
	}}
	var all []show.Column[Reported[T]]
	if !together {
		all = append(all, node)
	}
	for _, c := range columns {
		cell := func(t Reported[T]) string { return c.Cell(t.Item) }
		if c.Title == "STATE" {
			cell = func(t Reported[T]) string {
				if worst := len(t.Worst()); worst > 0 {
					return fmt.Sprintf("%s on %d of %d", c.Cell(t.Item), worst, len(t.Nodes)+t.Others)
				}
				return c.Cell(t.Item)
			}
		}
		if c.Title == "NODE" { // the node of an endpoint's Pod
			c.Title = "POD'S NODE"
		}
		all = append(all, show.Column[Reported[T]]{Title: c.Title, Cell: cell, Right: c.Right, Wide: c.Wide, Some: c.Some, Rank: c.Rank, Least: c.Least, Text: c.Text})
		if together && c.Title == "STATE" {
			all = append(all, node)
		}
	}
	return all
}

// CompareServices compares two Services by sort, a key of api.ServiceKeys, and then by name.
func CompareServices(sort string, a, b api.Service) int {
	names := cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	if of := api.ServiceKeys[sort]; of != nil {
		return cmp.Or(cmp.Compare(of(b.Totals), of(a.Totals)), names)
	}
	return names
}

// CompareConnections compares two connections by sort, and then by age, the newest first.
func CompareConnections(sort string, a, b api.Connection) int {
	waited := func(ms float64, c api.Connection) float64 { // 0 means that the connection still waits, or waited until it ended
		if ms == 0 && c.Protocol != "UDP" {
			return c.DurationMs
		}
		return ms
	}
	newest := b.Accepted.Compare(a.Accepted)
	switch sort {
	case api.SortAttempts:
		return cmp.Or(cmp.Compare(len(b.Attempts), len(a.Attempts)), newest)
	case api.SortDuration:
		return cmp.Or(cmp.Compare(b.DurationMs, a.DurationMs), newest)
	case api.SortConnect:
		return cmp.Or(cmp.Compare(waited(b.ConnectMs, b), waited(a.ConnectMs, a)), newest)
	case api.SortFirstByte:
		return cmp.Or(cmp.Compare(waited(cmp.Or(b.FirstByteMs, b.ConnectMs), b), waited(cmp.Or(a.FirstByteMs, a.ConnectMs), a)), newest)
	case api.SortBytes:
		return cmp.Or(cmp.Compare(b.BytesToEndpoint+b.BytesToClient, a.BytesToEndpoint+a.BytesToClient), newest)
	}
	return newest
}
