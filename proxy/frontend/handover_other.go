//go:build !linux

package frontend

import (
	"errors"
	"net/netip"
	"os"

	"github.com/usherproxy/usher/portal/handover"
)

// SocketNameOf is supported on Linux only.
func SocketNameOf(*os.File, bool) (name string, err error) { return "", errors.ErrUnsupported }

// Inherit returns -1.
func (n *Node) Inherit(string, netip.AddrPort) (fd int, err error) { return -1, nil }

// SocketFor returns false: there is no successor.
func SocketFor(int, string) (handover.Socket, bool) { return handover.Socket{}, false }
