package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

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
	none := modes.With(func(t portal.Traits) bool { return !t.Installs })
	other := false // usher runs here, as it seems to this process
	if slices.ContainsFunc(modes.Named(mode), func(m portal.Mode) bool { return m.Traits.Installs }) {
		lock, err = Lock(d.log, d.kept(keptLock))
		locked := errors.Is(err, handover.ErrLocked)
		other = locked || err == nil && len(lock.Strangers()) > 0
		switch {
		case err == nil, d.config.TakeOver && locked:
		case locked:
			return nil, fmt.Errorf("%w; stop it, take over from it with 'usher run --take-over', or use --portal=%s", err, none)
		case errors.Is(err, fs.ErrNotExist) && mode == modes.Auto:
			d.log.WithError(err).Warn("Without /proc only one portal works here")
			return d.openMode(ctx, none)
		default:
			return nil, fmt.Errorf("%w; --portal=%s needs no lock", err, none)
		}
	}
	o := d.config.Portal
	o.Log, o.NodePortAddresses = d.log, d.nodePorts
	p, err = modes.New(ctx, mode, o)
	if lock != nil && (err != nil || !p.Traits().Installs) {
		lock.Release()
		lock = nil
	}
	if err == nil && mode == modes.Auto && d.config.TakeOver && d.config.Demo == nil && !p.Traits().Installs {
		const needs = "this process can install no portal, which mostly needs CAP_NET_ADMIN in the user namespace that owns the network namespace, as root has it; what was tried is logged above"
		switch {
		case other:
			return nil, errors.New("--take-over: an usher runs here, but " + needs)
		case inPod(): // of a DaemonSet: it must not count as ready
			return nil, fmt.Errorf("%s. If Services are to be reached without VIPs, say --portal=%s", needs, none)
		}
		d.log.Warn("No VIP is served: " + needs)
	}
	d.setLock(lock)
	return p, err
}

// openPortalBeside is openPortal for a demo, which leaves an usher that is there
// already alone.
func (d *Daemon) openPortalBeside(ctx context.Context) (portal.Portal, error) {
	p, err := d.openMode(ctx, d.config.Mode)
	if errors.Is(err, handover.ErrLocked) && d.config.Mode == modes.Auto {
		d.log.WithError(err).Warn("Not touching the portals")
		return d.openMode(ctx, modes.With(func(t portal.Traits) bool { return !t.Installs }))
	}
	return p, err
}

// warnOfFirewall logs which rules of others may drop what the portal redirects.
func (d *Daemon) warnOfFirewall() {
	if !d.proxy.Portal.Traits().Redirects {
		return
	}
	drops, err := kernel.InputDrops()
	if err != nil {
		d.log.WithError(err).Debug("looking for a host firewall")
	}
	for _, chain := range drops {
		d.log.WithField("chain", chain).Warn("A host firewall may drop what the portal redirects: accept 192.0.0.117, fd75:7368:6572::1 and the health check node ports in INPUT")
	}
}
