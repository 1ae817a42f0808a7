//go:build !linux

package portal

import (
	"context"
	"errors"
	"iter"
	"net/netip"
	"syscall"

	"github.com/sirupsen/logrus"
)

// errOtherSystem is the answer of modes that need Linux.
var errOtherSystem = errors.New("this needs Linux; elsewhere there is only --portal=none")

// needsLinux is Mode.Open where a mode needs Linux.
func needsLinux(context.Context, Mode, Options) (Portal, error) { return nil, errOtherSystem }

// needNetAdmin is content: nothing is changed here.
func needNetAdmin() error { return nil }

// forgetRedirected has nothing to forget here.
func forgetRedirected(iter.Seq[Target], logrus.FieldLogger) {}

// OriginalDst answers ErrNotRedirected: portals do not redirect here.
func OriginalDst(syscall.Conn) (netip.AddrPort, error) {
	return netip.AddrPort{}, ErrNotRedirected
}

// OriginalDstFD is OriginalDst for a socket's descriptor.
func OriginalDstFD(int) (netip.AddrPort, error) {
	return netip.AddrPort{}, ErrNotRedirected
}

// Behind has no answer here.
func Behind(Interfaces) (func(netip.Addr) bool, error) {
	return nil, errors.New("only on Linux the route to a client tells whether it is a Pod")
}
