//go:build !linux

package stream

import (
	"context"
	"net"
	"net/netip"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/frontend"
)

// ListenTCP opens the listener that b asks for and starts to accept.
func (s *Server) ListenTCP(f *frontend.FrontEnd, b portal.Bind) (frontend.Listener, error) {
	opened, err := frontend.Listen(f.Node, b, listenTCP)
	if err != nil {
		return nil, err
	}
	l := s.newListening(f, b, opened, plainAddr(opened.Addr()))
	go l.run(func() error {
		conn, err := opened.AcceptTCP()
		if err != nil {
			return err
		}
		_ = conn.SetKeepAliveConfig(keepaliveConfig(s.Keepalive)) // good to have
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
	config := net.ListenConfig{KeepAlive: -1} // set for each connection
	l, err := config.Listen(context.Background(), network, addr.String())
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// dialFrom is never called: no portal looks at marks, or leads answers here.
func dialFrom(uintptr, uint32, netip.AddrPort) error { return nil }

// pair is what a loop moves, and so for Linux only.
type pair struct{}
