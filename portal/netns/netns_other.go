//go:build !linux

package netns

import (
	"errors"
	"net"
	"net/netip"
	"os"

	"github.com/usherproxy/usher/portal"
)

var errUnsupported = errors.New("network namespaces require Linux; 'kubectl usher connect' works without them")

// Namespace requires Linux: other systems have none.
type Namespace struct{}

// Start returns an error.
func Start(Options) (*Namespace, error) { return nil, errUnsupported }

// Inside returns an error.
func Inside() error { return errUnsupported }

// Socket is never called.
func (n *Namespace) Socket(domain, kind, protocol int) (int, error) { return -1, errUnsupported }

// ListenPacket is never called.
func (n *Namespace) ListenPacket(netip.AddrPort) (net.PacketConn, error) { return nil, errUnsupported }

// Listen is never called.
func (n *Namespace) Listen(netip.AddrPort) (net.Listener, error) { return nil, errUnsupported }

// Tun is never called.
func (n *Namespace) Tun() (*os.File, error) { return nil, errUnsupported }

// Portal is never called.
func (n *Namespace) Portal() portal.Portal { return nil }

// Run is never called.
func (n *Namespace) Run(Command, <-chan os.Signal) (int, error) { return 0, errUnsupported }

// Close is never called.
func (n *Namespace) Close() {}
