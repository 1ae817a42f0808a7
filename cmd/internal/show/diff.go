package show

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/frontend"
)

// Diff lists what would change on a node if it served the planned Services.
type Diff struct {
	Node   string `json:"node"`
	Portal string `json:"portal"`
	// ComparedWith is the address of the usher instance with the current Services; omitted if there is none.
	ComparedWith string `json:"comparedWith,omitempty"`
	// Ports are the service ports that change, one per IP family. Same is the number of those that do not change.
	Ports []PortDiff `json:"ports"`
	Same  int        `json:"same"`
	// Errors and Warnings are the problems of the manifests.
	Errors   []string `json:"errors"`
	Warnings []string `json:"warnings"`
}

// Change is the kind of a change.
type Change string

// The changes.
const (
	Added   Change = "add"
	Removed Change = "remove"
	Changed Change = "change"
	Kept    Change = "keep"
)

// marks are the first characters of lines, by change.
var marks = map[Change]string{Added: Good.Text("+"), Removed: Bad.Text("-"), Changed: Note.Text("~"), Kept: " "}

// PortDiff is a service port and its change.
type PortDiff struct {
	Change   Change `json:"change"`
	Service  string `json:"service"`
	Port     string `json:"port,omitempty"`
	Family   string `json:"family"`
	Protocol string `json:"protocol"`
	// The Text of VIPs describes how their traffic is handled, that of Endpoints which clients may use them, and that
	// of Settings their values.
	VIPs      []DiffItem `json:"vips"`
	Endpoints []DiffItem `json:"endpoints"`
	Settings  []DiffItem `json:"settings"`
}

// DiffItem is a part of a service port.
type DiffItem struct {
	Change Change `json:"change"`
	Name   string `json:"name"`
	Text   string `json:"text"`
	// Was is the previous Text, if it changes.
	Was string `json:"was,omitempty"`
}

// Compare adds to d the change of a service port from now to planned, in a portal with these traits. now is nil for an
// added port, and planned for a removed one.
func (d *Diff) Compare(service string, now, planned *api.ServicePort, traits portal.Traits) {
	some, change := cmp.Or(planned, now), Changed
	switch {
	case now == nil:
		change = Added
	case planned == nil:
		change = Removed
	}
	out := PortDiff{Service: service, Port: some.Name, Family: some.Family, Protocol: some.Protocol,
		VIPs:      compare(vipItems(now, traits), vipItems(planned, traits)),
		Endpoints: compare(endpointItems(now), endpointItems(planned)),
		Settings:  compare(settingItems(now), settingItems(planned))}
	if now != nil && planned != nil {
		out.Settings = append(out.Settings, compare(details(now), details(planned))...)
	}
	kept := func(items []DiffItem) bool {
		return !slices.ContainsFunc(items, func(i DiffItem) bool { return i.Change != Kept })
	}
	if kept(out.VIPs) && kept(out.Endpoints) && kept(out.Settings) {
		d.Same++
		return
	}
	out.Change = change
	d.Ports = append(d.Ports, out)
}

// compare returns all items by name, each with its change.
func compare(now, planned map[string]string) []DiffItem {
	all := map[string]string{}
	maps.Copy(all, now)
	maps.Copy(all, planned)
	out := make([]DiffItem, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		was, had := now[name]
		text, has := planned[name]
		item := DiffItem{Name: name, Text: text}
		switch {
		case !had:
			item.Change = Added
		case !has:
			item.Change, item.Text = Removed, was
		case was != text:
			item.Change, item.Was = Changed, was
		default:
			item.Change = Kept
		}
		out = append(out, item)
	}
	return out
}

func vipItems(p *api.ServicePort, traits portal.Traits) map[string]string {
	if p == nil {
		return nil
	}
	out := map[string]string{}
	for _, v := range p.VIPs {
		out[v.Kind+" "+v.Address] = becomes(p, v, traits)
	}
	return out
}

// becomes describes the handling of traffic to a VIP.
func becomes(p *api.ServicePort, v api.VIP, traits portal.Traits) string {
	used := map[string]int{}
	for _, e := range p.Endpoints {
		for _, use := range e.UsedFor {
			used[use]++
		}
	}
	external := v.Kind != "ClusterIP"
	action := frontend.ActionFor(external, used["internal"], used["external"], used["node"])
	from := ""
	if len(v.Sources) > 0 {
		from = ", from " + Few(v.Sources) + " only"
	}
	switch {
	case action == portal.Reject && !traits.Redirects:
		return "not listening: no endpoint"
	case action == portal.Reject:
		return "rejected: no endpoint"
	case action == portal.Drop && external && !traits.Redirects:
		return "refused, except from this node: no endpoint here"
	case action == portal.Drop && external:
		return "dropped, except from this node: no endpoint here"
	case action == portal.Drop && !traits.Redirects:
		return "not listening: no endpoint on this node"
	case action == portal.Drop:
		return "dropped: no endpoint on this node"
	case traits.Redirects:
		return "redirected to usher" + from
	case traits.Local:
		return "usher listens there" + from
	}
	return "usher listens elsewhere, on loopback" + from
}

func endpointItems(p *api.ServicePort) map[string]string {
	if p == nil {
		return nil
	}
	out := map[string]string{}
	for _, e := range p.Endpoints {
		used := slices.Sorted(slices.Values(e.UsedFor))
		text := "for no clients"
		switch {
		case len(used) == 3:
			text = "for all clients"
		case len(used) > 0:
			text = "for " + strings.Join(used, ", ")
		case e.Terminating:
			text += ": it is terminating"
		case !e.Ready:
			text += ": it is not ready"
		}
		if e.Node != "" {
			text += ", on " + e.Node
		}
		if e.Weight != 1 {
			text += fmt.Sprintf(", weight %d", e.Weight)
		}
		out[e.Address] = text
	}
	return out
}

func settingItems(p *api.ServicePort) map[string]string {
	if p == nil {
		return nil
	}
	out := map[string]string{}
	if p.Policies.Internal != "Cluster" {
		out["internalTrafficPolicy"] = p.Policies.Internal
	}
	if p.Policies.External != "Cluster" {
		out["externalTrafficPolicy"] = p.Policies.External
	}
	if affinity := p.Policies.AffinitySeconds; affinity > 0 {
		out["sessionAffinity"] = "ClientIP for " + Seconds(affinity)
	}
	maps.Copy(out, p.Settings)
	if p.Topology != nil {
		out["topology"] = topology(p.PortSummary)
	}
	if p.Source == portal.SourceConfigured.String() {
		out["client address"] = "node"
	}
	if p.ProxyProtocol != nil && p.ProxyProtocol.ToEndpoints != "" {
		out["PROXY protocol"] = p.ProxyProtocol.ToEndpoints + " to endpoints"
	}
	return out
}

// details are the settings that are not listed for added and removed ports.
func details(p *api.ServicePort) map[string]string {
	out := map[string]string{"protocol": p.Protocol}
	for _, v := range p.VIPs {
		for _, source := range v.Sources {
			out["source "+source] = "allowed"
		}
	}
	if p.ProxyProtocol != nil {
		for _, from := range p.ProxyProtocol.From {
			out["PROXY from "+from] = "accepted"
		}
	}
	return out
}

// Lines formats d.
func (d *Diff) Lines() (lines []string) {
	with := "nothing to compare with: usher is not running here"
	if d.ComparedWith != "" {
		with = "compared with usher at " + d.ComparedWith
	}
	lines = append(lines, fmt.Sprintf("Node %s, portal %s, %s.", Clean(cmp.Or(d.Node, "unknown")), d.Portal, with))
	count := map[Change]int{}
	for _, port := range d.Ports {
		count[port.Change]++
		lines = append(lines, "", marks[port.Change]+" "+Title.Text(Clean(servicePort(port.Service, port.Port, port.Family)))+"  "+Clean(port.Protocol))
		var rows []DiffItem
		for _, items := range [][]DiffItem{port.VIPs, port.Endpoints, port.Settings} {
			for _, item := range items {
				if item.Change == Kept {
					continue
				}
				if rows = append(rows, item); item.Change == Changed {
					rows = append(rows, DiffItem{Change: Kept, Text: "was: " + item.Was})
				}
			}
		}
		lines = append(lines, diffLines(rows)...)
	}
	if len(d.Ports) > 0 {
		lines = append(lines, "")
	}
	return append(lines, fmt.Sprintf("%s: %d added, %d removed, %d changed, %d unchanged.", Plural(len(d.Ports)+d.Same, "service port"), count[Added], count[Removed], count[Changed], d.Same))
}

// maxDiffLines is the maximum number of lines of a service port.
const maxDiffLines = 40

// diffLines formats the changed items of a service port.
func diffLines(rows []DiffItem) (lines []string) {
	more := max(0, len(rows)-maxDiffLines)
	columns := []Column[DiffItem]{
		{Cell: func(i DiffItem) string { return marks[i.Change] }},
		{Cell: func(i DiffItem) string { return Clean(plainName(i.Name)) }},
		{Cell: func(i DiffItem) string {
			if i.Change == Kept {
				return Quiet.Text(Clean(i.Text))
			}
			return Clean(i.Text)
		}},
	}
	for _, line := range Lines(columns, rows[:len(rows)-more])[1:] {
		lines = append(lines, "  "+line)
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("    … and %d more", more))
	}
	return lines
}

// plainName returns "NodePort 30080" for a node port on all addresses, and other names unchanged.
func plainName(name string) string {
	kind, address, _ := strings.Cut(name, " ")
	if host, port, err := net.SplitHostPort(address); err == nil && kind == "NodePort" && (host == "0.0.0.0" || host == "::") {
		return "NodePort " + port
	}
	return name
}
