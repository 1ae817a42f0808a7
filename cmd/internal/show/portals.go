package show

import (
	"strconv"
	"strings"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// Portals are the columns for the portal's rules.
var Portals = []Column[api.PortalRule]{
	{Title: "STATE", Cell: func(r api.PortalRule) string {
		if r.State == "" && r.Mode != "" { // not the row of WithInstalled
			return "-"
		}
		return Clean(r.State)
	}},
	{Title: "PORTAL", Rank: 2, Cell: func(r api.PortalRule) string { return Clean(r.Mode) }},
	{Title: "VIP", Cell: func(r api.PortalRule) string {
		if r.Protocol == "" {
			return Clean(r.VIP)
		}
		return Clean(r.VIP + "/" + r.Protocol)
	}},
	{Title: "ACTION", Cell: func(r api.PortalRule) string { return Clean(r.Action) }},
	{Title: "LOCAL PORT", Rank: 1, Cell: func(r api.PortalRule) string { return localPort(r.LocalPort) }},
	{Title: "SOURCES", Rank: 2, Cell: func(r api.PortalRule) string { return sources(r.Sources) }},
	{Title: "SERVICE PORT", Rank: 1, Least: 16, Cell: func(r api.PortalRule) string {
		if r.Mode == "" { // the row of WithInstalled
			return "-"
		}
		return dash(r.Service)
	}},
	{Title: "DESCRIPTION", Wide: true, Rank: 2, Text: true, Least: 40, Cell: func(r api.PortalRule) string { return dash(r.Text) }},
}

// PortalParts are the columns for the parts of the portal that all Services share.
var PortalParts = []Column[api.PortalPart]{
	{Title: "STATE", Cell: func(p api.PortalPart) string { return Clean(p.State) }},
	{Title: "FAMILY", Cell: func(p api.PortalPart) string { return Clean(p.Family) }},
	{Title: "OBJECT", Cell: func(p api.PortalPart) string { return Clean(p.Name) }},
	{Title: "DETAIL", Text: true, Least: 24, Cell: func(p api.PortalPart) string { return dash(p.Text) }},
}

// WithInstalled adds, after each rule that differs in the kernel, a row with the installed rule.
func WithInstalled(rules []api.PortalRule) (rows []api.PortalRule) {
	for _, r := range rules {
		rows = append(rows, r)
		if r.Installed != nil {
			rows = append(rows, api.PortalRule{Service: r.Service, VIP: "(installed)", PortalEffect: *r.Installed})
		}
	}
	return rows
}

func localPort(port uint16) string {
	if port == 0 {
		return "-"
	}
	return strconv.Itoa(int(port))
}

func sources(list []string) string {
	if len(list) == 0 {
		return "all"
	}
	return Few(list)
}

// ServiceOfRule returns the Service of a rule, "namespace/name", without port and IP family.
func ServiceOfRule(r api.PortalRule) string {
	service, _, _ := strings.Cut(r.Service, ":")
	return strings.TrimSuffix(service, "/IPv6")
}
