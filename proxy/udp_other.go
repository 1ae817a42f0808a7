//go:build !linux

package proxy

import (
	"fmt"
	"runtime"

	"github.com/usherproxy/usher/portal"
)

// udpEngine holds the bounds; there is nothing to run.
type udpEngine struct {
	proxy *Proxy
}

func (e *udpEngine) retired() {}
func (e *udpEngine) stop()    {}

func openUDP(*frontEnd, portal.Bind) (listener, error) {
	return nil, fmt.Errorf("%w: UDP is served on Linux only, not on %s", errProtocol, runtime.GOOS)
}
