//go:build !linux

package kernel

import (
	"context"
	"errors"
	"iter"
	"net/netip"
	"syscall"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/portal"
)

// NeedNetAdmin is content: nothing is changed here.
func NeedNetAdmin() error { return nil }

// ForgetRedirected has nothing to forget here.
func ForgetRedirected(iter.Seq[portal.Target], logrus.FieldLogger) {}

// InputDrops finds none here.
func InputDrops() ([]string, error) { return nil, nil }

// TryInput needs Linux.
func TryInput(context.Context, netip.AddrPort) (string, error) {
	return "", errors.New("connections through a device of usher require Linux")
}

// ShownSources knows of no flows here.
func ShownSources(map[ClientFlow]bool) (map[ClientFlow]netip.Addr, error) { return nil, nil }

// LoadConntrack has nothing to load here.
func LoadConntrack() {}

// ForgetAnswers has nothing to take out here.
func ForgetAnswers(uint32) ([]string, error) { return nil, nil }

// ForgetLastRoutes has nothing to take out here.
func ForgetLastRoutes() ([]string, error) { return nil, nil }

// OriginalDst answers ErrNotRedirected: portals do not redirect here.
func OriginalDst(syscall.Conn) (netip.AddrPort, error) {
	return netip.AddrPort{}, portal.ErrNotRedirected
}

// OriginalDstFD is OriginalDst for a socket's descriptor.
func OriginalDstFD(int, bool) (netip.AddrPort, error) {
	return netip.AddrPort{}, portal.ErrNotRedirected
}

// Behind has no answer here.
func Behind(portal.Interfaces) (func(netip.Addr) bool, error) {
	return nil, errors.New("detecting Pods by the route to a client requires Linux")
}

// Listener is a socket of this node that takes what comes to its address.
type Listener struct {
	Protocol portal.Protocol
	At       netip.AddrPort
	Mine     bool
}

// Holder finds no process here.
func Holder(portal.Target, func(*Listener) bool) string { return "" }
