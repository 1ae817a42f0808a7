package demo

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// httpServer is a server that answers with its name, unless it has a fault.
type httpServer struct {
	name string
	port *port

	stop func() // ends the current server; nil for none
}

func startHTTP(name string) (*httpServer, error) {
	port, err := newPort()
	if err != nil {
		return nil, err
	}
	return &httpServer{name: name, port: port}, nil
}

func (s *httpServer) addr() netip.AddrPort { return s.port.addr }

func (s *httpServer) setFault(f fault) error {
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
	// Afterwards, no server listens, and clients are refused.
	if err := s.port.silence(); err != nil {
		return err
	}
	backlog := maxBacklog
	switch f.kind {
	case api.DemoRefuse:
		return nil
	case api.DemoBlackhole:
		return s.port.swallow()
	case api.DemoFlaky:
		s.stop = s.serveSometimes(f)
		return nil
	case api.DemoSlowAccept:
		backlog = 0 // Linux accepts one connection then
	}
	l, err := s.port.listen(backlog)
	if err != nil {
		return err
	}
	if f.kind == api.DemoSlowAccept {
		l = slowListener{l}
	}
	s.stop = s.serveHTTP(l, f)
	return nil
}

func (s *httpServer) close() {
	if s.stop != nil {
		s.stop()
	}
	s.port.close()
}

// slowListener is the listener of a server that is slow to accept.
type slowListener struct{ net.Listener }

func (l slowListener) Accept() (net.Conn, error) {
	time.Sleep(slowAccept)
	return l.Listener.Accept()
}

// maxHeld is the number of connections that a server holds without an answer or a close. Beyond
// it, the server closes the oldest.
const maxHeld = 1000

// answerer answers requests, unless it has a fault.
type answerer struct {
	name  string
	fault fault
	turns turns
	done  chan struct{}                       // closed when the server stops
	held  *lru.Cache[chan struct{}, struct{}] // one for each held connection; closed when the connection must be closed
}

// serveHTTP serves on l until the function that it returns is called.
func (s *httpServer) serveHTTP(l net.Listener, f fault) (stop func()) {
	a, server := s.answerer(f)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) }) // until Close
	return func() {
		server.Close()
		close(a.done)
		serving.Wait()
	}
}

func (s *httpServer) answerer(f fault) (*answerer, *http.Server) {
	held, _ := lru.NewWithEvict(maxHeld, func(c chan struct{}, _ struct{}) { close(c) }) // fails only for a size of 0
	a := &answerer{name: s.name, fault: f, done: make(chan struct{}), held: held}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: a}
	if f.kind == api.DemoReset && f.perMille == 0 {
		server.ConnState = func(c net.Conn, state http.ConnState) {
			if state == http.StateNew {
				reset(c.(*net.TCPConn))
				c.Close()
			}
		}
	}
	return a, server
}

// serveSometimes is serveHTTP, but for a share of each second no server listens.
func (s *httpServer) serveSometimes(f fault) (stop func()) {
	a, server := s.answerer(f)
	wait := func(perMille uint64) (ended bool) {
		select {
		case <-a.done:
			return true
		case <-time.After(time.Duration(perMille) * time.Millisecond):
			return false
		}
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for !wait(f.perMille) {
			if f.perMille == 1000 {
				continue
			}
			l, err := s.port.listen(maxBacklog)
			if err != nil {
				continue // another process has the port, on systems that cannot keep it
			}
			serving.Go(func() { _ = server.Serve(l) }) // until silence or Close
			wait(1000 - f.perMille)
			_ = s.port.silence()
			l.Close()
		}
	})
	return func() {
		close(a.done)
		serving.Wait()
		server.Close()
	}
}

// ServeHTTP implements http.Handler.
func (a *answerer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	switch a.fault.kind {
	case api.DemoSlow, api.DemoDelay:
		// Wait the full time even if the request's context ends: a client that has closed its
		// sending direction still wants its answer.
		select {
		case <-time.After(a.fault.delay):
		case <-a.done:
		}
	case api.DemoReset:
		if a.turns.hit(a.fault.perMille) {
			a.seize(w, reset)
			return
		}
	case api.DemoHalfOpen, api.DemoHalfClose:
		a.seize(w, a.hold)
		return
	}
	fmt.Fprintf(w, "I am %s\n", a.name)
}

// seize takes the connection over from the HTTP server, and closes it after do.
func (a *answerer) seize(w http.ResponseWriter, do func(*net.TCPConn)) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return // a version of HTTP that the demo does not support
	}
	defer c.Close()
	do(c.(*net.TCPConn))
}

// reset makes Close send a reset.
func reset(c *net.TCPConn) { _ = c.SetLinger(0) }

// hold keeps a connection without an answer. A half-closed one ends when the client closes its
// direction. A half-open one ends if the client resets it without closing its direction first. Both
// end when the server stops, or holds too many connections.
func (a *answerer) hold(c *net.TCPConn) {
	pushed := a.keep()
	defer a.held.Remove(pushed)
	halfClosed := a.fault.kind == api.DemoHalfClose
	ended := make(chan struct{})
	go func() {
		if _, err := io.Copy(io.Discard, c); err != nil || halfClosed { // until the client ends, or Close
			close(ended)
		}
	}()
	if halfClosed {
		_ = c.CloseWrite() // fails if the client has left
	}
	select {
	case <-ended:
	case <-pushed:
	case <-a.done:
	}
}

// keep registers one more held connection, and returns a channel that is closed when it must be closed.
func (a *answerer) keep() chan struct{} {
	pushed := make(chan struct{})
	a.held.Add(pushed, struct{}{})
	return pushed
}
