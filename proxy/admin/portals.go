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

// NewPortalRule returns r in the API's form.
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
	if r.Sources != "" {
		e.Sources = strings.Fields(r.Sources.String())
	}
	return e
}

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

// ruleInWords returns the effect of a rule, of a portal with these traits, as text.
func ruleInWords(traits portal.Traits, r portal.Rule) string {
	if r.Target.Port == 0 {
		return fmt.Sprintf("%s is an address of this node", r.Target.Addr)
	}
	at := netip.AddrPortFrom(r.Target.Addr, r.Target.Port).String()
	if r.Target.Addr.IsUnspecified() {
		at = fmt.Sprintf("port %d on every address of this node", r.Target.Port)
	}
	switch {
	case r.Action == portal.Redirect && !traits.CarriesVIPs():
		return fmt.Sprintf("nothing redirects %s to usher, which listens on port %d", at, r.LocalPort)
	case r.Action == portal.Redirect && traits.Local && r.Target.Addr.IsUnspecified():
		return fmt.Sprintf("usher listens on %s", at)
	case r.Action == portal.Redirect && traits.Local:
		return fmt.Sprintf("%s is an address of this node, and usher listens on %s", r.Target.Addr, at)
	case !traits.Redirects && r.LocalPort != 0:
		return fmt.Sprintf("usher serves %s only for clients on this node: no usable endpoint is on this node", at)
	case !traits.Redirects && r.Action == portal.Drop:
		return fmt.Sprintf("usher does not listen on %s: no usable endpoint is on this node", at)
	case !traits.Redirects:
		return fmt.Sprintf("usher does not listen on %s: no usable endpoint, or opening the listener failed", at)
	}
	who := "packets from clients"
	if sources := portalEffect(r).Sources; len(sources) > 0 {
		who = "packets from clients in " + strings.Join(sources, ", ")
	}
	switch {
	case r.Action == portal.Redirect:
		return fmt.Sprintf("%s to %s are redirected to usher's port %d", who, at, r.LocalPort)
	case r.Action == portal.Reject:
		return fmt.Sprintf("%s to %s are rejected: no usable endpoint, or opening the listener failed", who, at)
	case r.LocalPort != 0:
		return fmt.Sprintf("%s to %s are redirected to usher's port %d if the client is on this node, else dropped: no usable endpoint is on this node", who, at, r.LocalPort)
	}
	return fmt.Sprintf("%s to %s are dropped: no usable endpoint is on this node", who, at)
}
