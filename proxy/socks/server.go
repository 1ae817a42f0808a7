package socks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/things-go/go-socks5"
	"github.com/things-go/go-socks5/statute"

	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/forward"
)

const (
	// maxClients bounds those that are served at once; others wait to be accepted.
	maxClients = 1024
	// requestTime is how long a client may take to say what it wants.
	requestTime = 10 * time.Second
	// acceptPause is how long to wait when clients cannot be accepted, for want of
	// descriptors as a rule.
	acceptPause = 100 * time.Millisecond
	// dialTime is how long connecting directly may take.
	dialTime = 30 * time.Second
)

// Server is a SOCKS5 server.
type Server struct {
	proxy    *proxy.Proxy
	log      logrus.FieldLogger
	listener *net.TCPListener
	protocol *socks5.Server
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	clients  sync.WaitGroup
	slots    chan struct{}

	mu     sync.Mutex
	direct map[forward.Flow]struct{} // connections that are not a Service's
}

// Listen returns a server on address, host:port. Without a host it listens on
// 127.0.0.1. Clients are served from Serve on.
func Listen(address string, p *proxy.Proxy, log logrus.FieldLogger) (*Server, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if host == "" {
		host = "127.0.0.1"
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, err
	}
	s := &Server{proxy: p, log: log, listener: l.(*net.TCPListener), slots: make(chan struct{}, maxClients), direct: map[forward.Flow]struct{}{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.protocol = socks5.NewServer(
		socks5.WithResolver(unresolved{}),
		socks5.WithConnectHandle(s.connect),
		socks5.WithBindHandle(refuse),
		socks5.WithAssociateHandle(refuse),
	)
	return s, nil
}

// Addr returns where s listens.
func (s *Server) Addr() netip.AddrPort { return s.listener.Addr().(*net.TCPAddr).AddrPort() }

// Serve accepts clients until ctx ends. Those that it has accepted go on.
func (s *Server) Serve(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { s.listener.Close() })
	defer stop()
	for {
		s.slots <- struct{}{}
		conn, err := s.listener.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			<-s.slots
			s.log.WithError(err).Warn("SOCKS clients cannot be accepted; trying again")
			time.Sleep(acceptPause)
			continue
		}
		s.clients.Go(func() {
			defer func() { <-s.slots }()
			s.serve(conn)
		})
	}
}

// Close ends the connections that are not to Services, and waits for all. Those to
// Services are the Proxy's, which ends them when it is drained.
func (s *Server) Close() {
	s.listener.Close()
	s.cancel()
	s.mu.Lock()
	for flow := range s.direct {
		flow.Break()
	}
	s.mu.Unlock()
	s.clients.Wait()
}

// serve returns when the connection has ended.
func (s *Server) serve(conn *net.TCPConn) {
	_ = conn.SetDeadline(time.Now().Add(requestTime)) // fails only if it is gone
	hurry := context.AfterFunc(s.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	if err := s.protocol.ServeConn(&handshake{conn, hurry}); err != nil {
		s.log.WithField("client", conn.RemoteAddr().String()).WithError(err).Debug("SOCKS request")
	}
}

// handshake is a client's connection until it has said what it wants.
type handshake struct {
	*net.TCPConn
	over func() bool // ends the hurry that Close makes
}

// client is a client's connection from then on.
type client struct {
	*net.TCPConn
	reader  io.Reader // of TCPConn: it may have more of that than the request
	closing sync.Once
	closed  chan struct{}
}

func (c *client) Read(p []byte) (int, error) { return c.reader.Read(p) }

func (c *client) Close() error {
	err := c.TCPConn.Close()
	c.closing.Do(func() { close(c.closed) })
	return err
}

// connect answers CONNECT. It returns when the connection has ended.
func (s *Server) connect(_ context.Context, writer io.Writer, request *socks5.Request) error {
	h := writer.(*handshake)
	h.over()
	c := &client{TCPConn: h.TCPConn, reader: request.Reader, closed: make(chan struct{})}
	host, port := request.DestAddr.FQDN, uint16(request.DestAddr.Port)
	if host == "" {
		host = request.DestAddr.IP.String()
	}
	where, vip := routeOf(s.proxy, host, port)
	switch where {
	case service:
		return s.connectService(c, vip)
	case unknown:
		return errors.Join(fmt.Errorf("there is no Service %s", host), socks5.SendReply(c, statute.RepHostUnreachable, nil))
	case refused:
		return errors.Join(fmt.Errorf("%s has no endpoints for port %d", host, port), socks5.SendReply(c, statute.RepConnectionRefused, nil))
	}
	return s.connectDirectly(c, net.JoinHostPort(host, strconv.Itoa(int(port))))
}

// connectService says yes before an endpoint was found, as a portal does.
func (s *Server) connectService(c *client, vip netip.AddrPort) error {
	if err := begin(c, c.LocalAddr()); err != nil {
		return err
	}
	s.proxy.Serve(c, c.RemoteAddr().(*net.TCPAddr).AddrPort(), vip)
	<-c.closed
	return nil
}

// connectDirectly connects to what is no Service.
func (s *Server) connectDirectly(c *client, address string) error {
	ctx, cancel := context.WithTimeout(s.ctx, dialTime)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return errors.Join(err, socks5.SendReply(c, replyTo(err), nil))
	}
	if err := begin(c, conn.LocalAddr()); err != nil {
		conn.Close()
		return err
	}
	done := make(chan struct{})
	flow := forward.Copy(c, conn.(*net.TCPConn), forward.Limits{HalfClosed: s.proxy.HalfClosed}, func(forward.Result) { close(done) })
	s.mu.Lock()
	s.direct[flow] = struct{}{}
	s.mu.Unlock()
	if s.ctx.Err() != nil { // Close may have passed by already
		flow.Break()
	}
	<-done
	s.mu.Lock()
	delete(s.direct, flow)
	s.mu.Unlock()
	return nil
}

// begin says yes to the client. From then on, bytes are the connection's.
func begin(c *client, local net.Addr) error {
	if err := socks5.SendReply(c, statute.RepSuccess, local); err != nil {
		return err
	}
	return c.SetDeadline(time.Time{})
}

// replyTo returns the reply that tells of an error of connecting.
func replyTo(err error) uint8 {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return statute.RepConnectionRefused
	case errors.Is(err, syscall.ENETUNREACH):
		return statute.RepNetworkUnreachable
	}
	return statute.RepHostUnreachable
}

// refuse answers commands that are not served.
func refuse(_ context.Context, writer io.Writer, _ *socks5.Request) error {
	return socks5.SendReply(writer, statute.RepCommandNotSupported, nil)
}

// unresolved leaves names as they are.
type unresolved struct{}

func (unresolved) Resolve(ctx context.Context, _ string) (context.Context, net.IP, error) {
	return ctx, nil, nil
}
