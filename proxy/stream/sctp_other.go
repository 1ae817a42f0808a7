//go:build !linux || 386

package stream

import (
	"fmt"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/frontend"
)

// ListenSCTP returns an error.
func (s *Server) ListenSCTP(*frontend.FrontEnd, portal.Bind) (frontend.Listener, error) {
	return nil, fmt.Errorf("%w: SCTP is not supported on this platform", ErrNoSCTP)
}
