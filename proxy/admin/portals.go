package admin

import (
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy"
)

// PortalsPath is where the portals are told of.
const PortalsPath = "/api/v1/portals"

// Portals is the answer to GET /api/v1/portals: what the portal wants to have in
// the kernel, and what is there.
type Portals struct {
	// Mode is "iptables", "nftables", "address" or "none".
	Mode string `json:"mode,omitempty"`
	// LastApplied is when the kernel was last brought up to date, LastCheck when
	// it was last compared with what is wanted.
	LastApplied time.Time `json:"lastApplied,omitzero"`
	LastCheck   time.Time `json:"lastCheck,omitzero"`
	// Repairs is how many rules, routes and chains were put back since the start.
	Repairs int64 `json:"repairs"`
	// Rules are in the order of their VIPs.
	Rules []PortalRule `json:"rules"`
}

// PortalRule is one rule.
type PortalRule struct {
	// Mode is the mode of the portal that the rule belongs to: another one than
	// Portals.Mode for what an earlier process has left.
	Mode string `json:"mode"`
	// Service is the service port, "namespace/service:port" with "/IPv6" behind
	// it for the IPv6 side; "" if that is not known.
	Service string `json:"service,omitempty"`
	// Protocol is "TCP", "UDP" or "SCTP"; "" for an address that leads all.
	Protocol string `json:"protocol,omitempty"`
	// VIP is "address:port", with the address 0.0.0.0 or [::] for a node port; for
	// an address that leads all ports, the address alone.
	VIP string `json:"vip"`
	// State is "ok", "missing" (from the kernel), "differs" or "extra" (nobody
	// wants it); "" if no usher said what is wanted.
	State string `json:"state,omitempty"`
	PortalEffect
	// Installed is what the kernel has, if that differs.
	Installed *PortalEffect `json:"installed,omitempty"`
}

// PortalEffect is what a rule does.
type PortalEffect struct {
	// Action is "redirect", "reject", "drop", or "address": the VIP is an address
	// of this node.
	Action string `json:"action"`
	// LocalPort is that of usher's listener; 0 if the rule leads to none.
	LocalPort uint16 `json:"localPort,omitempty"`
	// Sources are the only networks that may connect; none means everybody.
	Sources []string `json:"sources,omitempty"`
}

// actionAddress is the action of a route that makes an address local.
const actionAddress = "address"

// NewPortalRule returns r as JSON has it.
func NewPortalRule(mode string, r portal.Rule) PortalRule {
	t := r.Target
	p := PortalRule{Mode: mode, Service: r.Comment, VIP: t.Addr.String(), PortalEffect: PortalEffect{Action: actionAddress}}
	if t.Port == 0 {
		return p
	}
	p.VIP, p.Protocol = netip.AddrPortFrom(t.Addr, t.Port).String(), strings.ToUpper(t.Protocol.String())
	p.PortalEffect = portalEffect(r)
	return p
}

func portalEffect(r portal.Rule) PortalEffect {
	e := PortalEffect{Action: r.Action.String(), LocalPort: r.LocalPort}
	if r.Sources != (portal.Sources{}) {
		e.Sources = strings.Fields(r.Sources.String())
	}
	return e
}

// PortalsHandler answers GET /api/v1/portals for p.
func PortalsHandler(p *proxy.Proxy) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		status, err := p.PortalStatus(r.Context())
		if err != nil {
			writeJSON(w, http.StatusInternalServerError, map[string]string{"error": err.Error()})
			return
		}
		answer := Portals{Mode: status.Mode, LastApplied: status.Sync.LastApplied, LastCheck: status.Sync.LastChecked,
			Repairs: status.Repaired, Rules: make([]PortalRule, 0, len(status.Rules))}
		for _, c := range status.Rules {
			rule := NewPortalRule(c.Mode, c.Rule)
			rule.State = string(c.State)
			if c.State == portal.StateDiffers {
				installed := portalEffect(c.Installed)
				rule.Installed = &installed
			}
			answer.Rules = append(answer.Rules, rule)
		}
		writeJSON(w, http.StatusOK, answer)
	}
}
