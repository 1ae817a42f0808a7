package admin

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/admin/api"
)

// actionAddress is the action of a route that makes an address local.
const actionAddress = "address"

// NewPortalRule returns r as JSON has it.
func NewPortalRule(mode string, r portal.Rule) api.PortalRule {
	t := r.Target
	p := api.PortalRule{Mode: mode, Service: r.Comment, VIP: t.Addr.String(), PortalEffect: api.PortalEffect{Action: actionAddress}}
	if t.Port == 0 {
		return p
	}
	p.VIP, p.Protocol = netip.AddrPortFrom(t.Addr, t.Port).String(), strings.ToUpper(t.Protocol.String())
	p.PortalEffect = portalEffect(r)
	return p
}

func portalEffect(r portal.Rule) api.PortalEffect {
	e := api.PortalEffect{Action: r.Action.String(), LocalPort: r.LocalPort}
	if r.Sources != (portal.Sources{}) {
		e.Sources = strings.Fields(r.Sources.String())
	}
	return e
}

// portals answers /portals.
func (a *API) portals(r *http.Request) (any, error) {
	status, err := a.proxy.PortalStatus(r.Context())
	if err != nil {
		return nil, err
	}
	answer := api.Portals{Mode: status.Mode, LastApplied: status.Sync.LastApplied, LastCheck: status.Sync.LastChecked,
		Repairs: status.Repaired, Rules: make([]api.PortalRule, 0, len(status.Rules))}
	for _, c := range status.Rules {
		rule := NewPortalRule(c.Mode, c.Rule)
		rule.State = string(c.State)
		rule.Text = ruleInWords(c.Traits, c.Rule)
		if c.State == portal.StateDiffers {
			installed := portalEffect(c.Installed)
			rule.Installed = &installed
		}
		answer.Rules = append(answer.Rules, rule)
	}
	for _, p := range status.Parts {
		answer.Parts = append(answer.Parts, api.PortalPart{Family: p.Family.String(), Name: p.Name, State: string(p.State), Text: p.Text})
	}
	return answer, nil
}

// ruleInWords says what a rule of a portal with these traits does.
func ruleInWords(traits portal.Traits, r portal.Rule) string {
	if r.Target.Port == 0 {
		return fmt.Sprintf("%s is an address of this node", r.Target.Addr)
	}
	at := netip.AddrPortFrom(r.Target.Addr, r.Target.Port).String()
	if r.Target.Addr.IsUnspecified() {
		at = fmt.Sprintf("port %d of every address of this node", r.Target.Port)
	}
	switch {
	case r.Action == portal.Redirect && !traits.Leads():
		return fmt.Sprintf("nothing leads from %s to usher, who listens on port %d", at, r.LocalPort)
	case r.Action == portal.Redirect && traits.Local && r.Target.Addr.IsUnspecified():
		return fmt.Sprintf("usher listens on %s", at)
	case r.Action == portal.Redirect && traits.Apart:
		return fmt.Sprintf("%s is led to a network namespace of usher's own, where usher listens on %s", r.Target.Addr, at)
	case r.Action == portal.Redirect && traits.Local:
		return fmt.Sprintf("%s is an address of this node, and usher listens on %s", r.Target.Addr, at)
	case !traits.Redirects:
		return fmt.Sprintf("nobody listens on %s: there is no endpoint that could be used", at)
	}
	who := "what clients send"
	if sources := portalEffect(r).Sources; len(sources) > 0 {
		who = "what clients in " + strings.Join(sources, ", ") + " send"
	}
	switch {
	case r.Action == portal.Redirect:
		return fmt.Sprintf("%s to %s is led to usher's port %d", who, at, r.LocalPort)
	case r.Action == portal.Reject:
		return fmt.Sprintf("%s to %s is rejected: there is no endpoint", who, at)
	case r.LocalPort != 0:
		return fmt.Sprintf("%s to %s is led to usher's port %d if the client is of this node, and dropped otherwise: there are endpoints on other nodes only", who, at, r.LocalPort)
	}
	return fmt.Sprintf("%s to %s is dropped: there are endpoints on other nodes only", who, at)
}
