package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/portal/modes"
)

// Lock takes the lock of the portals, and says who only claimed to have it. Nobody
// else manages rules here until it is released. left is as for handover.Acquire.
func Lock(log logrus.FieldLogger, left *os.File) (*handover.Lock, error) {
	lock, err := handover.Acquire(left)
	if err != nil {
		return nil, err
	}
	for _, who := range lock.Strangers() {
		log.WithField("who", who).Warn("Somebody who may not change this network namespace claims to be the usher that manages its portals; going on regardless")
	}
	return lock, nil
}

// openPortal makes the portal, and takes the lock that goes with it. There is no lock
// for a portal that installs nothing here, and none yet if it is taken over from
// another usher.
func (d *Daemon) openPortal(ctx context.Context) (portal.Portal, error) {
	switch {
	case d.config.Netns != nil:
		return d.config.Netns.Portal(), nil
	case d.config.Demo != nil:
		return d.openPortalBeside(ctx)
	}
	return d.openMode(ctx, d.config.Mode)
}

func (d *Daemon) openMode(ctx context.Context, mode string) (p portal.Portal, err error) {
	var lock *handover.Lock
	if slices.ContainsFunc(modes.Named(mode), func(m portal.Mode) bool { return m.Traits.Installs }) {
		lock, err = Lock(d.log, d.kept(keptLock))
		if err != nil && !(d.config.TakeOver && errors.Is(err, handover.ErrLocked)) {
			return nil, fmt.Errorf("%w; stop it, take over from it with 'usher run --take-over', or use --portal=none", err)
		}
	}
	o := d.config.Portal
	o.Log, o.NodePortAddresses = d.log, d.nodePorts
	p, err = modes.New(ctx, mode, o)
	if lock != nil && (err != nil || !p.Traits().Installs) {
		lock.Release()
		lock = nil
	}
	d.setLock(lock)
	return p, err
}

// openPortalBeside is openPortal for a demo, which leaves an usher that is there
// already alone, and whose own clients must reach the cluster IPs: rules see only
// what has a route, which a machine without a network does not have.
func (d *Daemon) openPortalBeside(ctx context.Context) (portal.Portal, error) {
	if d.config.Mode == modes.Auto && !routed(d.config.Demo.VIP) {
		local := modes.With(func(t portal.Traits) bool { return t.Local })
		if p, err := d.openMode(ctx, local); err == nil {
			d.log.WithField("portal", local).Info("No route leads to cluster IPs here: the portal makes some")
			return p, nil
		}
	}
	p, err := d.openMode(ctx, d.config.Mode)
	if errors.Is(err, handover.ErrLocked) && d.config.Mode == modes.Auto {
		d.log.WithError(err).Warn("Not touching the portals")
		return d.openMode(ctx, modes.With(func(t portal.Traits) bool { return !t.Installs }))
	}
	return p, err
}

// routed reports whether this machine has a route to addr. It sends nothing.
func routed(addr netip.Addr) bool {
	_, err := kernel.SourceTo(netip.AddrPortFrom(addr, 9))
	return !errors.Is(err, syscall.ENETUNREACH)
}
