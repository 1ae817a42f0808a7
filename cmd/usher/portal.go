package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/cmd/usher/demo"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/handover"
)

// acquireLock takes the lock of the portals, and says who only claimed to have it.
func acquireLock(log logrus.FieldLogger) (*handover.Lock, error) {
	lock, err := handover.Acquire()
	if err != nil {
		return nil, err
	}
	for _, who := range lock.Strangers() {
		log.WithField("who", who).Warn("Somebody who may not change this network namespace claims to be the usher that manages its portals; going on regardless")
	}
	return lock, nil
}

// openPortal makes the portal called mode, and takes the lock that goes with it:
// nobody else may manage rules here until it is released. The lock is nil for a
// portal that installs nothing, and, with takeOver, if another usher has it.
func openPortal(ctx context.Context, mode string, options portal.Options, takeOver bool) (lock *handover.Lock, p portal.Portal, err error) {
	if mode != portal.ModeNone {
		lock, err = acquireLock(options.Log)
		if err != nil && !(takeOver && errors.Is(err, handover.ErrLocked)) {
			return nil, nil, fmt.Errorf("%w; stop it, take over from it with 'usher run --take-over', or use --portal=none", err)
		}
	}
	p, err = portal.New(ctx, mode, options)
	if lock != nil && (err != nil || p.Mode() == portal.ModeNone) {
		lock.Release()
		lock = nil
	}
	return lock, p, err
}

// openPortalBeside is openPortal for a demo, which leaves an usher that is
// there already alone, and whose own clients must reach the cluster IPs: rules see
// only what has a route, which a machine without a network does not have.
func openPortalBeside(ctx context.Context, mode string, options portal.Options) (lock *handover.Lock, p portal.Portal, err error) {
	if mode == portal.ModeAuto && !routed(demo.VIP) {
		if lock, p, err = openPortal(ctx, portal.ModeAddress, options, false); err == nil {
			options.Log.WithField("portal", portal.ModeAddress).Info("No route leads to cluster IPs here: the portal makes some")
			return lock, p, nil
		}
	}
	lock, p, err = openPortal(ctx, mode, options, false)
	if errors.Is(err, handover.ErrLocked) && mode == portal.ModeAuto {
		options.Log.WithError(err).Warn("Not touching the portals")
		return openPortal(ctx, portal.ModeNone, options, false)
	}
	return lock, p, err
}

// routed reports whether this machine has a route to addr. It sends nothing.
func routed(addr netip.Addr) bool {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 9)))
	if err == nil {
		conn.Close()
	}
	return !errors.Is(err, syscall.ENETUNREACH)
}
