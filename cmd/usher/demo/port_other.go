//go:build !linux

package demo

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// port is a TCP port on loopback. While no server listens on it, another process
// might take it.
type port struct {
	addr     netip.AddrPort
	listener net.Listener // nil while no server listens
}

func newPort() (*port, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &port{addr: l.Addr().(*net.TCPAddr).AddrPort(), listener: l}, nil
}

// silence ends listening.
func (p *port) silence() error {
	p.close()
	return nil
}

// maxBacklog stands for the system's default backlog.
const maxBacklog = 0

// listen returns a listener.
func (p *port) listen(_ int) (l net.Listener, err error) {
	p.listener, err = net.Listen("tcp4", p.addr.String())
	return p.listener, err
}

// swallow would make the port unresponsive.
func (p *port) swallow() error {
	return fmt.Errorf("a port that never answers can be made on Linux only: %w", errors.ErrUnsupported)
}

func (p *port) close() {
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
}
