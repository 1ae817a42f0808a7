package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/portal/modes"
)

// Lock takes the lock of the portals, and logs processes that claimed to have it without proof. No
// other usher process manages rules here until the lock is released. left is as for handover.Acquire.
func Lock(log logrus.FieldLogger, left *os.File) (*handover.Lock, error) {
	lock, err := handover.Acquire(left)
	if err != nil {
		return nil, err
	}
	for _, who := range lock.Strangers() {
		log.WithField("process", who).Warn("Ignoring process that claims to manage the portals: it has another user ID, or lacks CAP_NET_ADMIN in this network namespace")
	}
	return lock, nil
}

// openPortal creates the portal and takes its lock. A portal that installs nothing here
// needs no lock. With Config.TakeOver, if another usher process holds the lock, the daemon gets it later.
// A demo does not disturb that process.
func (d *Daemon) openPortal(ctx context.Context) (portal.Portal, error) {
	if d.config.Netns != nil {
		return d.config.Netns.Portal(), nil
	}
	p, err := d.openMode(ctx, d.config.Mode)
	if d.config.Demo != nil && d.config.Mode == modes.Auto && errors.Is(err, handover.ErrLocked) {
		d.log.WithError(err).Warn("Another usher instance manages the portals; the demo uses none")
		return d.openMode(ctx, modes.None)
	}
	return p, err
}

func (d *Daemon) openMode(ctx context.Context, mode string) (p portal.Portal, err error) {
	var lock *handover.Lock
	other := false // whether another usher instance seems to run here
	if slices.ContainsFunc(modes.Named(mode), func(m portal.Mode) bool { return m.Traits.Installs }) {
		lock, err = Lock(d.log, d.kept(fdstore.LockName))
		locked := errors.Is(err, handover.ErrLocked)
		other = locked || err == nil && len(lock.Strangers()) > 0
		switch {
		case err == nil, d.config.TakeOver && locked:
		case locked:
			return nil, fmt.Errorf("%w; stop it, replace it with 'usher run --take-over', or set --portal=%s", err, modes.None)
		case errors.Is(err, fs.ErrNotExist) && mode == modes.Auto:
			d.log.WithError(err).Warn("Without /proc only portal none is available; using it")
			return d.openMode(ctx, modes.None)
		default:
			return nil, fmt.Errorf("%w; --portal=%s needs no lock", err, modes.None)
		}
	}
	o := d.config.Portal
	o.OtherProxies = d.config.ServiceProxyName != "" && d.config.ServiceProxyName != translate.AnyProxy
	o.Log, o.NodePortAddresses = d.log, d.nodePorts
	p, err = modes.New(ctx, mode, o)
	if lock != nil && (err != nil || !p.Traits().Installs) {
		lock.Release()
		lock = nil
	}
	if err == nil && mode == modes.None && d.config.TakeOver {
		d.log.Warn("--take-over has no effect with --portal=" + modes.None + ": a running instance keeps its listeners until it stops")
	}
	if err == nil && mode == modes.Auto && d.config.TakeOver && d.config.Demo == nil && !p.Traits().Installs {
		const needs = "this process cannot install a portal: run as root or add CAP_NET_ADMIN in the user namespace that owns the network namespace; the log above has the reason for each portal"
		switch {
		case other:
			return nil, errors.New("--take-over: an usher instance is running here, but " + needs)
		case fdstore.InPod(): // of a DaemonSet: it must not count as ready
			return nil, fmt.Errorf("%s; to serve Services without VIPs, set --portal=%s", needs, modes.None)
		}
		d.log.Warn("VIPs are not served: " + needs)
	}
	d.setLock(lock)
	return p, err
}

// warnOfFirewall logs a warning if a host firewall may drop redirected packets. It makes test connections. If one fails
// or cannot be made, it looks for rules of other programs that may drop such packets.
func (d *Daemon) warnOfFirewall(ctx context.Context, services []config.Service) {
	if !d.proxy.Portal.Traits().Redirects {
		return
	}
	dropped, err := d.tryInput(ctx, services)
	if err == nil && dropped == "" || ctx.Err() != nil {
		return
	}
	chains, rulesErr := kernel.InputDrops()
	if log := d.log.WithField("chains", strings.Join(chains, ", ")); dropped != "" || len(chains) > 0 {
		log.WithField("tried", cmp.Or(dropped, fmt.Sprint(err))).
			Warn("A host firewall may drop redirected packets: accept 192.0.0.117, fd75:7368:6572::1 and the health check node ports in INPUT")
	} else if rulesErr != nil {
		d.log.WithError(rulesErr).Debug("Cannot check for a host firewall")
	}
}

// tryInput makes one test connection per IP family to a VIP, as if from another host (through a TUN device). dropped
// describes the last connection that failed. An error means that a connection could not be tried.
func (d *Daemon) tryInput(ctx context.Context, services []config.Service) (dropped string, err error) {
	tried := map[config.Family]bool{}
	for _, s := range services {
		for _, p := range s.Ports {
			vip := p.VIPs[0].AddrPort()
			if _, usable := d.proxy.Serves(vip); p.Protocol != config.TCP || tried[p.ID.Family] || !usable {
				continue
			}
			tried[p.ID.Family] = true
			refusal, err := kernel.TryInput(ctx, vip)
			if err != nil {
				return dropped, err
			}
			if refusal != "" {
				dropped = fmt.Sprintf("a connection to %s %s", vip, refusal)
			}
		}
	}
	if len(tried) == 0 {
		return "", errors.New("no TCP service port is served")
	}
	return dropped, nil
}
