package demo

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// echoServer sends datagrams back with its name as prefix, unless it has a fault.
type echoServer struct {
	name string
	at   netip.AddrPort
	conn *net.UDPConn // always holds the port

	serving sync.WaitGroup
}

func startEcho(name string) (*echoServer, error) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	return &echoServer{name: name, at: conn.LocalAddr().(*net.UDPAddr).AddrPort(), conn: conn}, nil
}

func (s *echoServer) addr() netip.AddrPort { return s.at }

func (s *echoServer) setFault(f fault) (err error) {
	s.close()
	at := net.UDPAddrFromAddrPort(s.at)
	if f.kind == api.DemoRefuse {
		// A connected socket receives datagrams from its peer only, here
		// itself. The kernel answers all others with ICMP port unreachable, and the port
		// stays in use.
		s.conn, err = net.DialUDP("udp4", at, at)
		return err
	}
	if s.conn, err = net.ListenUDP("udp4", at); err != nil {
		return err
	}
	conn := s.conn
	s.serving.Go(func() { s.serve(conn, f) })
	return nil
}

func (s *echoServer) close() {
	if s.conn != nil { // nil if its port was not available again
		s.conn.Close()
	}
	s.serving.Wait()
}

// maxDelayed is the maximum number of delayed answers that a server holds.
const maxDelayed = 1000

// serve answers until conn is closed.
func (s *echoServer) serve(conn *net.UDPConn, f fault) {
	var turns turns
	var delayed atomic.Int64
	buf := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		reply := fmt.Appendf(nil, "%s: %s", s.name, buf[:n])
		send := func() { _, _ = conn.WriteToUDPAddrPort(reply, from) } // fails if the client has left
		switch {
		case f.kind == api.DemoBlackhole || f.kind == api.DemoFlaky && turns.hit(f.perMille):
		case f.delay > 0:
			if delayed.Add(1) > maxDelayed {
				delayed.Add(-1)
				continue // lost, as by a server whose queue is full
			}
			time.AfterFunc(f.delay, func() {
				send()
				delayed.Add(-1)
			})
		default:
			send()
		}
	}
}
