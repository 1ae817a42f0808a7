//go:build !linux

package datagram

import (
	"fmt"
	"iter"
	"os"
	"runtime"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
)

// Server is empty.
type Server struct{}

// New returns a Server.
func New(*frontend.Node, *forward.Pollers) *Server { return new(Server) }

// Listen returns an error.
func (*Server) Listen(*frontend.FrontEnd, portal.Bind) (frontend.Listener, error) {
	return nil, fmt.Errorf("%w: UDP requires Linux, not %s", frontend.ErrProtocol, runtime.GOOS)
}

// Sessions yields nothing.
func (*Server) Sessions(bool) iter.Seq[handover.Socket] {
	return func(func(handover.Socket) bool) {}
}

// Inherit does nothing.
func (*Server) Inherit(map[string]*os.File) {}

// InheritRest does nothing.
func (*Server) InheritRest(map[string]*os.File) {}

// Resume does nothing.
func (*Server) Resume() {}

// Retired returns at once.
func (*Server) Retired() {}

// Stop does nothing.
func (*Server) Stop() {}
