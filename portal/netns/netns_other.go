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

// Start and Inside return an error, so the methods are never called.

func Start(Options) (*Namespace, error) { return nil, errUnsupported }
func Inside() error                     { return errUnsupported }

func (n *Namespace) Socket(domain, kind, protocol int) (int, error)      { return -1, errUnsupported }
func (n *Namespace) ListenPacket(netip.AddrPort) (net.PacketConn, error) { return nil, errUnsupported }
func (n *Namespace) Listen(netip.AddrPort) (net.Listener, error)         { return nil, errUnsupported }
func (n *Namespace) Tun() (*os.File, error)                              { return nil, errUnsupported }
func (n *Namespace) Portal() portal.Portal                               { return nil }
func (n *Namespace) Run(Command, <-chan os.Signal) (int, error)          { return 0, errUnsupported }
func (n *Namespace) Close()                                              {}
