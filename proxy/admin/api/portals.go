package api

import "time"

// Portals is what the portal wants to have in the kernel, and what is there.
type Portals struct {
	// Mode is iptables, nftables, address or none.
	Mode string `json:"mode,omitempty"`
	// LastApplied is when the kernel was last brought up to date, LastCheck when
	// it was last compared with what is wanted.
	LastApplied time.Time `json:"lastApplied,omitzero"`
	LastCheck   time.Time `json:"lastCheck,omitzero"`
	// Repairs is how many rules, routes and chains were put back since the start.
	Repairs int64 `json:"repairs"`
	// Rules are in the order of their VIPs.
	Rules []PortalRule `json:"rules"`
	// Parts are what there is for all Services together, so that endpoints see their
	// clients' own addresses and only usher receives what is redirected, and routes of last
	// resort; left out if nothing is, or need be.
	Parts []PortalPart `json:"parts,omitempty"`
}

// PortalPart is a chain, routing rule or route.
type PortalPart struct {
	Family string `json:"family"`
	Name   string `json:"name"`
	// State is as in PortalRule.
	State string `json:"state"`
	// Text is what is wanted or, if it is extra, what is there, as ip, iptables and nft
	// show it.
	Text string `json:"text,omitempty"`
}

// PortalRule is one rule.
type PortalRule struct {
	// Mode is the mode of the portal that the rule belongs to: another one than
	// Portals.Mode for what an earlier process has left.
	Mode string `json:"mode"`
	// Service is the service port, "namespace/service:port" with "/IPv6" behind
	// it for the IPv6 side; left out if that is not known.
	Service string `json:"service,omitempty"`
	// Protocol is TCP, UDP or SCTP; left out for an address that leads all.
	Protocol string `json:"protocol,omitempty"`
	// VIP is "address:port", with the address 0.0.0.0 or [::] for a node port; for
	// an address that leads all ports, the address alone.
	VIP string `json:"vip"`
	// State is ok, missing (from the kernel), differs or extra (nobody wants it);
	// left out where the kernel was not looked at.
	State string `json:"state,omitempty"`
	PortalEffect
	// Installed is what the kernel has, if that differs.
	Installed *PortalEffect `json:"installed,omitempty"`
	// Text says in words what the rule does.
	Text string `json:"text,omitempty"`
}

// PortalEffect is what a rule does.
type PortalEffect struct {
	// Action is redirect, reject, drop, or address: the VIP is an address of this
	// node, or of a network namespace of usher's own.
	Action string `json:"action"`
	// LocalPort is that of usher's listener; left out if the rule leads to none.
	LocalPort uint16 `json:"localPort,omitempty"`
	// Sources are the only networks that may connect; left out if everybody may.
	Sources []string `json:"sources,omitempty"`
}
