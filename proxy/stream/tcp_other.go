//go:build !linux

package stream

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/frontend"
)

// ListenTCP opens the listener that b describes and starts to accept.
func (s *Server) ListenTCP(f *frontend.FrontEnd, b portal.Bind) (frontend.Listener, error) {
	opened, err := frontend.Listen(f.Node, b, listenTCP)
	if err != nil {
		return nil, err
	}
	l := s.newListening(f, b, -1, plainAddr(opened.Addr()), func(bool) error { return opened.Close() })
	go l.run(func() error {
		conn, err := opened.AcceptTCP()
		if err != nil {
			return err
		}
		_ = conn.SetKeepAliveConfig(keepaliveConfig(s.Keepalive)) // optional
		l.servePortable(conn, plainAddr(conn.RemoteAddr()))
		return nil
	})
	return l, nil
}

func listenTCP(addr netip.AddrPort) (*net.TCPListener, error) {
	network := "tcp4"
	if addr.Addr().Is6() {
		network = "tcp6"
	}
	config := net.ListenConfig{KeepAlive: -1} // set on each connection
	l, err := config.Listen(context.Background(), network, addr.String())
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// prepareDialSocket is never called: portals set neither a mark nor a source address here.
func prepareDialSocket(uintptr, uint32, netip.AddrPort) error { return nil }

// pair exists on Linux only, since a loop forwards it.
type pair struct{}

// NewTransfer is supported on Linux only.
func (s *Server) NewTransfer() (*net.UnixConn, handover.Socket, error) {
	return nil, handover.Socket{}, errors.ErrUnsupported
}

// HandOver is never called.
func (s *Server) HandOver(*net.UnixConn, func() map[*balance.State]time.Time) {}

// Inherit returns nil.
func (s *Server) Inherit(map[string]*os.File) *net.UnixConn { return nil }

// Receive does nothing: there is no predecessor.
func (s *Server) Receive(*net.UnixConn, Receiver) {}

// saving exists on Linux only.
type saving struct{}

// loops exist on Linux only.
type loops struct{}

func (loops) giveUp()                                   {}
func (loops) retire(map[*balance.State]bool, time.Time) {}
func (loops) stop(*Server)                              {}
