//go:build !linux

package portal

import (
	"context"
	"errors"
	"net/netip"
	"syscall"

	"github.com/sirupsen/logrus"
)

// modes are all modes, in the order in which auto tries them.
var modes = []mode{
	{ModeIPTables, needsLinux},
	{ModeNFTables, needsLinux},
	{ModeAddress, needsLinux},
	{ModeNone, newNone},
}

// errOtherSystem is the answer of modes that need Linux.
var errOtherSystem = errors.New("this needs Linux; elsewhere there is only --portal=none")

func needsLinux(context.Context, Options) (Portal, error) { return nil, errOtherSystem }

// OriginalDst answers ErrNotRedirected: portals do not redirect here.
func OriginalDst(syscall.Conn) (netip.AddrPort, error) {
	return netip.AddrPort{}, ErrNotRedirected
}

// OriginalDstFD is OriginalDst for a socket's descriptor.
func OriginalDstFD(int) (netip.AddrPort, error) {
	return netip.AddrPort{}, ErrNotRedirected
}

// Cleanup finds nothing: no mode leaves traces here.
func Cleanup(context.Context, logrus.FieldLogger) (removed []string, err error) { return nil, nil }

// List finds nothing: no mode leaves traces here.
func List(context.Context, logrus.FieldLogger) ([]Installed, error) { return nil, nil }

// Behind has no answer here.
func (i Interfaces) Behind() (func(netip.Addr) bool, error) {
	return nil, errors.New("only on Linux the route to a client tells whether it is a Pod")
}
