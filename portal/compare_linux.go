package portal

import (
	"context"
	"maps"
	"net/netip"
)

// Compare implements Portal.
func (p *redirectPortal) Compare(ctx context.Context) ([]Comparison, error) {
	p.mu.Lock()
	wanted := p.rules()
	p.mu.Unlock()
	installed, err := List(ctx, p.log)
	if err != nil {
		return nil, err
	}
	return compare(p.mode, wanted, installed), nil
}

// Compare implements Portal.
func (p *addressPortal) Compare(ctx context.Context) ([]Comparison, error) {
	p.mu.Lock()
	wanted := maps.Clone(p.rules)
	p.mu.Unlock()
	if p.opts.Alone {
		return compareLocal(wanted, p.routes.isLocal, nil), nil
	}
	installed, err := List(ctx, p.log)
	if err != nil {
		return nil, err
	}
	routed := map[netip.Addr]bool{}
	for _, i := range installed {
		routed[i.Rule.Target.Addr] = routed[i.Rule.Target.Addr] || i.Mode == ModeAddress
	}
	return compareLocal(wanted, func(vip netip.Addr) bool { return routed[vip] || p.routes.isLocal(vip) }, installed), nil
}
