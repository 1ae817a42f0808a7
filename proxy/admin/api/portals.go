package api

import "time"

// Portals holds the portal's wanted rules and their state in the kernel.
type Portals struct {
	// Mode is iptables, nftables, address or none.
	Mode string `json:"mode,omitempty"`
	// LastApplied is when the kernel was last brought up to date, LastCheck when it was last compared with
	// the wanted rules.
	LastApplied time.Time `json:"lastApplied,omitzero"`
	LastCheck   time.Time `json:"lastCheck,omitzero"`
	// Repairs is the number of rules, routes and chains restored since the start.
	Repairs int64 `json:"repairs"`
	// Rules are in the order of their VIPs.
	Rules []PortalRule `json:"rules"`
	// Parts are shared by all Services. They make endpoints see their clients' own addresses, let only usher
	// receive redirected packets, and include routes of last resort. Left out if none are wanted and none exist.
	Parts []PortalPart `json:"parts,omitempty"`
}

// PortalPart is a chain, routing rule or route.
type PortalPart struct {
	Family string `json:"family"`
	Name   string `json:"name"`
	// State is as in PortalRule.
	State string `json:"state"`
	// Text is the wanted part or, if it is extra, the installed one, as ip, iptables and nft show it.
	Text string `json:"text,omitempty"`
}

// PortalRule is one rule.
type PortalRule struct {
	// Mode is the mode of the portal that the rule belongs to: it differs from Portals.Mode if an earlier
	// process left the rule.
	Mode string `json:"mode"`
	// Service is the service port, "namespace/service:port", with suffix "/IPv6" for the IPv6 side; left out
	// if unknown.
	Service string `json:"service,omitempty"`
	// Protocol is TCP, UDP or SCTP; left out for an address that redirects all ports.
	Protocol string `json:"protocol,omitempty"`
	// VIP is "address:port", with the address 0.0.0.0 or [::] for a node port; for an address that redirects
	// all ports, the address alone.
	VIP string `json:"vip"`
	// State is ok, missing (from the kernel), differs or extra (not wanted); left out if the kernel was not
	// read.
	State string `json:"state,omitempty"`
	PortalEffect
	// Installed is the rule in the kernel, if that differs.
	Installed *PortalEffect `json:"installed,omitempty"`
	// Text describes the effect of the rule.
	Text string `json:"text,omitempty"`
}

// PortalEffect is the effect of a rule.
type PortalEffect struct {
	// Action is redirect, reject, drop, or address: the VIP is an address of this node.
	Action string `json:"action"`
	// LocalPort is the port of usher's listener; left out if the rule redirects to none.
	LocalPort uint16 `json:"localPort,omitempty"`
	// Sources are the only networks that may connect; left out if all may.
	Sources []string `json:"sources,omitempty"`
}
