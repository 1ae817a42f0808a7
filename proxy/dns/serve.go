package dns

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/net/netutil"
)

const (
	// maxQuery is the maximum size of a query over UDP, in bytes: far more than a name and options need.
	maxQuery = 4096
	// maxClients is the maximum number of TCP connections per listener; further ones wait.
	maxClients = 64
	// idleTimeout is how long a TCP connection may be idle, and how long it may take to receive an answer
	// (RFC 7766, 6.2.3: in the order of seconds).
	idleTimeout = 10 * time.Second
)

// Serve answers the queries that arrive on pc, a *net.UDPConn, and l (TCP). It returns nil when ctx ends, and an error
// if a socket is closed before that; it retries after other errors. It closes both sockets. It may run for several
// pairs of sockets at once.
func (s *Server) Serve(ctx context.Context, pc net.PacketConn, l net.Listener) error {
	l = netutil.LimitListener(l, maxClients)
	ctx, cancel := context.WithCancel(ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()
	context.AfterFunc(ctx, func() {
		pc.Close()
		l.Close()
	})

	failed := make(chan error, 1)
	run := func(serve func() error) {
		workers.Go(func() {
			if err := serve(); err != nil && ctx.Err() == nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	}
	udp := pc.(*net.UDPConn)
	// The call for the other address family fails. Where both fail (macOS, Windows), the kernel chooses the address that
	// an answer comes from.
	_ = ipv4.NewPacketConn(udp).SetControlMessage(ipv4.FlagDst|ipv4.FlagInterface, true)
	_ = ipv6.NewPacketConn(udp).SetControlMessage(ipv6.FlagDst|ipv6.FlagInterface, true)
	for range runtime.GOMAXPROCS(0) {
		run(func() error { return s.serveUDP(ctx, udp, &workers) })
	}
	run(func() error { return s.serveTCP(ctx, l, &workers) })

	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// serveUDP answers datagrams sequentially until the socket is closed. Only queries that wait for upstreams run
// concurrently. Each answer comes from the address that its query was sent to: a client accepts no other.
func (s *Server) serveUDP(ctx context.Context, udp *net.UDPConn, workers *sync.WaitGroup) error {
	buf := make([]byte, maxQuery)
	for {
		n, session, err := dns.ReadFromSessionUDP(udp, buf)
		answer := func(reply []byte) { _, _ = dns.WriteToSessionUDP(udp, reply, session) } // fails if the client's socket is closed
		switch {
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // it concerns one datagram, as a reset on Windows does, or memory is short
			if !pause(ctx) {
				return nil
			}
			continue
		}
		e := s.begin(buf[:n])
		switch {
		case e == nil:
		case !e.waits():
			answer(s.end(e, e.room))
		case !s.upstreams.reserve():
			e.fail()
			answer(s.end(e, e.room))
		default:
			workers.Go(func() {
				defer s.upstreams.release()
				s.complete(ctx, e)
				answer(s.end(e, e.room))
			})
		}
	}
}

// pause waits briefly, and returns false if ctx ends.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(10 * time.Millisecond):
		return true
	}
}

// serveTCP accepts clients until the listener is closed.
func (s *Server) serveTCP(ctx context.Context, l net.Listener, workers *sync.WaitGroup) error {
	for {
		c, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // it concerns one connection, or no descriptor is free
			if !pause(ctx) {
				return nil
			}
			continue
		}
		workers.Go(func() { s.serveClient(ctx, c) })
	}
}

// serveClient answers the queries of one connection sequentially, and closes it.
func (s *Server) serveClient(ctx context.Context, c net.Conn) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	conn := dns.Conn{Conn: c}
	for {
		if c.SetDeadline(time.Now().Add(idleTimeout)) != nil {
			return
		}
		raw, err := conn.ReadMsgHeader(nil)
		if err != nil {
			return
		}
		e := s.begin(raw)
		switch {
		case e == nil:
			return
		case !e.waits():
		case !s.upstreams.reserve():
			e.fail()
		default:
			s.complete(ctx, e)
			s.upstreams.release()
		}
		if c.SetWriteDeadline(time.Now().Add(idleTimeout)) != nil { // the query and its answer may have used up the deadline
			return
		}
		if _, err := conn.Write(s.end(e, dns.MaxMsgSize-1)); err != nil {
			return
		}
	}
}
