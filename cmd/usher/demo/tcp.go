package demo

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// httpServer is a server that says its name, unless it has a fault.
type httpServer struct {
	name string
	port *port
	slow atomic.Bool

	stop func() // ends what serves now; nil for nothing
}

func startHTTP(name string) (*httpServer, error) {
	port, err := newPort()
	if err != nil {
		return nil, err
	}
	return &httpServer{name: name, port: port}, nil
}

func (s *httpServer) addr() netip.AddrPort { return s.port.addr }

func (s *httpServer) setFault(fault string) error {
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
	// Nobody listens now: clients are refused.
	if err := s.port.silence(); err != nil {
		return err
	}
	s.slow.Store(fault == api.DemoSlow)
	switch fault {
	case api.DemoRefuse:
		return nil
	case api.DemoBlackhole:
		return s.port.swallow()
	}
	l, err := s.port.listen()
	if err != nil {
		return err
	}
	if fault == api.DemoReset {
		s.stop = serveResets(l)
	} else {
		s.stop = s.serveHTTP(l)
	}
	return nil
}

func (s *httpServer) close() {
	if s.stop != nil {
		s.stop()
	}
	s.port.close()
}

// serveHTTP serves on l until the function that it returns is called.
func (s *httpServer) serveHTTP(l net.Listener) (stop func()) {
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: s}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) }) // until Close
	return func() {
		server.Close()
		serving.Wait()
	}
}

// ServeHTTP implements http.Handler.
func (s *httpServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.slow.Load() {
		select {
		case <-time.After(slowAnswer):
		case <-r.Context().Done():
		}
	}
	fmt.Fprintf(w, "I am %s\n", s.name)
}

// serveResets accepts every connection on l, and breaks it off, until the
// function that it returns is called.
func serveResets(l net.Listener) (stop func()) {
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.(*net.TCPConn).SetLinger(0) // so that Close sends a reset
			c.Close()
		}
	})
	return func() {
		l.Close()
		serving.Wait()
	}
}
