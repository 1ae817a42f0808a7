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

// NeedNetAdmin returns nil: nothing is changed here.
func NeedNetAdmin() error { return nil }

// ForgetRedirected does nothing here.
func ForgetRedirected(iter.Seq[portal.Target], logrus.FieldLogger) {}

// InputDrops returns none here.
func InputDrops() ([]string, error) { return nil, nil }

// TryInput needs Linux.
func TryInput(context.Context, netip.AddrPort) (string, error) {
	return "", errors.New("connections through a device of usher require Linux")
}

// ShownSources returns none here.
func ShownSources(map[ClientFlow]bool) (map[ClientFlow]netip.Addr, error) { return nil, nil }

// LoadConntrack does nothing here.
func LoadConntrack() {}

// ForgetAnswers does nothing here.
func ForgetAnswers(uint32) ([]string, error) { return nil, nil }

// ForgetLastRoutes does nothing here.
func ForgetLastRoutes() ([]string, error) { return nil, nil }

// OriginalDst returns ErrNotRedirected: portals do not redirect here.
func OriginalDst(syscall.Conn) (netip.AddrPort, error) {
	return netip.AddrPort{}, portal.ErrNotRedirected
}

// Behind returns an error here.
func Behind(portal.Interfaces) (func(netip.Addr) bool, error) {
	return nil, errors.New("detecting Pods by the route to a client requires Linux")
}

// Listener is a socket of this node that receives packets for its address.
type Listener struct {
	Protocol portal.Protocol
	At       netip.AddrPort
	Mine     bool
}

// Holder returns "" here.
func Holder(portal.Target, func(*Listener) bool) string { return "" }
