package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/usherproxy/usher/portal"
)

// openPortal makes the portal called mode, and the lock that goes with it:
// nobody else may manage rules here until unlock is called. A portal that
// installs nothing needs no lock.
func openPortal(ctx context.Context, mode string, options portal.Options) (unlock func(), p portal.Portal, err error) {
	unlock = func() {}
	if mode != portal.ModeNone {
		if unlock, err = portal.Lock(); err != nil {
			return nil, nil, fmt.Errorf("%w; stop it, or use --portal=none", err)
		}
	}
	p, err = portal.New(ctx, mode, options)
	if err != nil || p.Mode() == portal.ModeNone {
		unlock()
		unlock = func() {}
	}
	return unlock, p, err
}

// openPortalBeside is openPortal for a demo, which leaves an usher that is
// there already alone.
func openPortalBeside(ctx context.Context, mode string, options portal.Options) (unlock func(), p portal.Portal, err error) {
	unlock, p, err = openPortal(ctx, mode, options)
	if errors.Is(err, portal.ErrLocked) && mode == portal.ModeAuto {
		options.Log.WithError(err).Warn("Not touching the portals")
		return openPortal(ctx, portal.ModeNone, options)
	}
	return unlock, p, err
}
