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

// Nothing is changed on other systems, so there is nothing to find, load or remove.

func NeedNetAdmin() error                                                 { return nil }
func ForgetRedirected(iter.Seq[portal.Target], logrus.FieldLogger)        {}
func InputDrops() ([]string, error)                                       { return nil, nil }
func ShownSources(map[ClientFlow]bool) (map[ClientFlow]netip.Addr, error) { return nil, nil }
func LoadConntrack()                                                      {}
func ForgetAnswers(uint32) ([]string, error)                              { return nil, nil }
func ForgetLastRoutes() ([]string, error)                                 { return nil, nil }
func Holder(portal.Target, func(*Listener) bool) string                   { return "" }

func EachListener(func(portal.Protocol, netip.AddrPort, string, string)) error { return nil }

// OriginalDst returns ErrNotRedirected: portals do not redirect here.
func OriginalDst(syscall.Conn) (netip.AddrPort, error) {
	return netip.AddrPort{}, portal.ErrNotRedirected
}

// TryInput returns an error here, as does Behind.
func TryInput(context.Context, netip.AddrPort) (string, error) {
	return "", errors.New("connections through a device of usher require Linux")
}

func Behind(portal.Interfaces) (func(netip.Addr) bool, error) {
	return nil, errors.New("detecting Pods by the route to a client requires Linux")
}

// Listener is a socket of this node that receives packets for its address.
type Listener struct {
	Protocol portal.Protocol
	At       netip.AddrPort
	Mine     bool
}
