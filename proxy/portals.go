package proxy

import (
	"context"
	"fmt"

	"github.com/usherproxy/usher/portal"
)

// PortalStatus tells what the portal wants, and what of it is in the kernel.
type PortalStatus struct {
	Mode     string
	Sync     SyncStatus
	Repaired int64 // rules, routes and chains that somebody had removed or changed, since the start
	// Rules are those that are wanted or installed. The comment of one that is
	// wanted is the service port's PortID.String.
	Rules []portal.Comparison
}

// PortalStatus reads the kernel's rules and compares them. It does not hold up
// changes; one read at a time is made, so that many who ask cost no more than one
// after the other.
func (p *Proxy) PortalStatus(ctx context.Context) (PortalStatus, error) {
	p.reading.Lock()
	defer p.reading.Unlock()
	status := PortalStatus{Mode: p.Portal.Mode()}
	if err := ctx.Err(); err != nil { // whoever asked has not waited
		return status, err
	}
	rules, err := p.Portal.Compare(ctx)
	if err != nil {
		return status, fmt.Errorf("reading the rules of the %s portal: %w", status.Mode, err)
	}
	status.Rules, status.Sync, status.Repaired = rules, p.SyncStatus(), p.counters.repaired.Load()
	return status, nil
}
