//go:build !linux || 386

package sctp

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/usherproxy/usher/proxy/forward"
)

// Supported is whether this package has sockets on this system.
const Supported = false

// Listener does not exist here.
type Listener struct{}

// Listen fails.
func Listen(netip.AddrPort, func(domain, kind, protocol int) (fd int, err error)) (*Listener, error) {
	return nil, ErrUnsupported
}

// ListenAgain fails.
func ListenAgain(int) (*Listener, error) { return nil, ErrUnsupported }

// SyscallConn fails.
func (*Listener) SyscallConn() (syscall.RawConn, error) { return nil, ErrUnsupported }

// Leave does nothing.
func (*Listener) Leave() error { return nil }

// Accept fails.
func (*Listener) Accept() (*Conn, error) { return nil, ErrUnsupported }

// LocalAddr returns no address.
func (*Listener) LocalAddr() Addr { return Addr{} }

// Close does nothing.
func (*Listener) Close() error { return nil }

// Conn does not exist here.
type Conn struct{}

// Dial fails.
func Dial(context.Context, uint32, netip.AddrPort, Streams) (*Conn, error) {
	return nil, ErrUnsupported
}

// The methods of an association.
func (*Conn) Streams() Streams                      { return Streams{} }
func (*Conn) Receive() (*forward.Message, error)    { return nil, ErrUnsupported }
func (*Conn) Release(*forward.Message)              {}
func (*Conn) Send(*forward.Message) error           { return ErrUnsupported }
func (*Conn) CloseWrite() error                     { return ErrUnsupported }
func (*Conn) SetLinger(int) error                   { return ErrUnsupported }
func (*Conn) Close() error                          { return nil }
func (*Conn) SetReadDeadline(time.Time) error       { return ErrUnsupported }
func (*Conn) SetWriteDeadline(time.Time) error      { return ErrUnsupported }
func (*Conn) LocalAddr() net.Addr                   { return Addr{} }
func (*Conn) RemoteAddr() net.Addr                  { return Addr{} }
func (*Conn) SyscallConn() (syscall.RawConn, error) { return nil, ErrUnsupported }
