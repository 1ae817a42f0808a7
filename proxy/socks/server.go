package socks

import (
	"bufio"
	"bytes"
	"context"
	"errors"
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
	"github.com/usherproxy/usher/proxy/outcome"
)

const (
	// maxClients is the maximum number of concurrent clients; others wait to be accepted.
	maxClients = 1024
	// requestTime is the maximum time until a client has sent its request.
	requestTime = 10 * time.Second
	// acceptPause is the pause after accept fails, usually because no descriptors are left.
	acceptPause = 100 * time.Millisecond
	// dialTime is the timeout for connecting directly.
	dialTime = 30 * time.Second
	// syncTime is the maximum time that a request waits for the initial sync. usher's own connection to the API server
	// may come through this proxy.
	syncTime = 5 * time.Second
)

// Server is a SOCKS5 server and an HTTP proxy.
type Server struct {
	// HalfClosed is the idle timeout of half-closed connections that are not to a Service; 0 = none. Set it before
	// Serve.
	HalfClosed time.Duration

	proxy    *proxy.Proxy
	domain   string // of the cluster, such as cluster.local
	log      logrus.FieldLogger
	listener *net.TCPListener
	socks    *socks5.Server
	web      *webClients
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	clients  sync.WaitGroup
	slots    chan struct{}

	mu     sync.Mutex
	direct map[forward.Flow]struct{} // connections that are not to a Service
}

// Listen returns a server on address, host:port, for the cluster's domain. Without a host it listens on 127.0.0.1. Call
// Serve to serve clients.
func Listen(address, domain string, p *proxy.Proxy, log logrus.FieldLogger) (*Server, error) {
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
	s := &Server{proxy: p, domain: domain, log: log, listener: l.(*net.TCPListener), slots: make(chan struct{}, maxClients), direct: map[forward.Flow]struct{}{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.socks = socks5.NewServer(
		socks5.WithResolver(unresolved{}),
		socks5.WithConnectHandle(s.connect),
		socks5.WithBindHandle(refuse),
		socks5.WithAssociateHandle(refuse),
	)
	s.web = &webClients{Listener: l, clients: make(chan net.Conn), ctx: s.ctx}
	s.clients.Go(func() { _ = s.webServer().Serve(s.web) }) // its error is that it was closed
	return s, nil
}

// Addr returns the listen address.
func (s *Server) Addr() netip.AddrPort { return s.listener.Addr().(*net.TCPAddr).AddrPort() }

// Serve accepts clients until ctx ends. Accepted ones continue.
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
			s.log.WithError(err).Warn("Cannot accept clients of the SOCKS and HTTP proxy; retrying")
			time.Sleep(acceptPause)
			continue
		}
		s.clients.Go(func() {
			defer func() { <-s.slots }()
			s.serve(conn)
		})
	}
}

// Close ends the connections that are not to Services, and waits for all. Those to Services belong to the Proxy, which
// ends them when it is drained.
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
	_ = conn.SetDeadline(time.Now().Add(requestTime)) // fails only if it is closed
	stopAfterFunc := context.AfterFunc(s.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stopAfterFunc()
	var first [1]byte // the version in SOCKS, the first letter of the method in HTTP
	if _, err := conn.Read(first[:]); err != nil {
		conn.Close()
		return
	}
	c := &client{TCPConn: conn, reader: io.MultiReader(bytes.NewReader(first[:]), conn), stopAfterFunc: stopAfterFunc, closed: make(chan struct{})}
	if first[0] >= 'A' {
		s.web.serve(c)
	} else if err := s.socks.ServeConn(c); err != nil {
		s.logFailure(conn.RemoteAddr().String(), err)
	}
}

// logFailure logs why a request failed.
func (s *Server) logFailure(client string, err error) {
	s.log.WithField("client", client).WithError(err).Debug("Request to the SOCKS and HTTP proxy failed")
}

// client is a client's connection.
type client struct {
	*net.TCPConn
	reader        io.Reader   // of TCPConn, and of data that was already read from it
	stopAfterFunc func() bool // stops the AfterFunc that ends reading, or the connection, on Server.Close
	closing       sync.Once
	closed        chan struct{}
}

func (c *client) Read(p []byte) (int, error) { return c.reader.Read(p) }

// unread makes Read return the data again that was read beyond the request.
func (c *client) unread(ahead *bufio.Reader) {
	early, _ := ahead.Peek(ahead.Buffered()) // only data that is already buffered
	c.reader = io.MultiReader(bytes.NewReader(early), c.TCPConn)
}

func (c *client) Close() error {
	err := c.TCPConn.Close()
	c.closing.Do(func() { close(c.closed) })
	return err
}

// connect answers CONNECT of SOCKS. It returns when the connection has ended.
func (s *Server) connect(_ context.Context, writer io.Writer, request *socks5.Request) error {
	c := writer.(*client)
	c.unread(request.Reader.(*bufio.Reader))
	host := request.DestAddr.FQDN
	if host == "" {
		host = request.DestAddr.IP.String()
	}
	return s.tunnel(c, host, uint16(request.DestAddr.Port), func(local net.Addr, err error) error {
		return socks5.SendReply(c, replyTo(err), local)
	})
}

// tunnel connects a client to its destination. It calls answer, which sends the result to the client; after that all
// bytes belong to the connection. tunnel returns when the connection has ended.
func (s *Server) tunnel(c *client, host string, port uint16, answer func(local net.Addr, err error) error) error {
	c.stopAfterFunc()
	_ = c.SetDeadline(time.Time{}) // fails only if it is closed
	vip, err := s.routeOf(host, port)
	if vip.IsValid() { // the client gets success before an endpoint is found, as with a portal
		if err := answer(c.LocalAddr(), nil); err != nil {
			return err
		}
		from := c.RemoteAddr().(*net.TCPAddr).AddrPort() // IPv4-mapped if the server listens on all addresses
		s.proxy.Serve(c, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), vip)
		<-c.closed
		return nil
	}
	var to net.Conn
	if err == nil {
		to, err = s.dialDirectly(s.ctx, host, port)
	}
	if err != nil {
		return errors.Join(err, answer(nil, err))
	}
	if err := answer(to.LocalAddr(), nil); err != nil {
		to.Close()
		return err
	}
	s.forward(c, to.(*net.TCPConn))
	return nil
}

// waitForSync waits until the initial sync is applied, at most for syncTime.
func (s *Server) waitForSync() {
	select {
	case <-s.proxy.InitialSync():
	case <-time.After(syncTime):
	case <-s.ctx.Done():
	}
}

// dialDirectly connects to a destination that is not a Service.
func (s *Server) dialDirectly(ctx context.Context, host string, port uint16) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTime}
	return d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
}

// forward forwards a connection that is not to a Service, and returns when it has ended.
func (s *Server) forward(c *client, to *net.TCPConn) {
	done := make(chan struct{})
	flow := forward.Copy(c, to, forward.Limits{HalfClosed: s.HalfClosed}, forward.Done(func(outcome.Result) { close(done) }))
	s.mu.Lock()
	s.direct[flow] = struct{}{}
	s.mu.Unlock()
	if s.ctx.Err() != nil { // Close may already have run
		flow.Break()
	}
	<-done
	s.mu.Lock()
	delete(s.direct, flow)
	s.mu.Unlock()
}

// replyTo returns the SOCKS reply for err, with which connecting ended; nil means success.
func replyTo(err error) uint8 {
	switch {
	case err == nil:
		return statute.RepSuccess
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, errRefused):
		return statute.RepConnectionRefused
	case errors.Is(err, syscall.ENETUNREACH):
		return statute.RepNetworkUnreachable
	}
	return statute.RepHostUnreachable
}

// refuse answers unsupported commands.
func refuse(_ context.Context, writer io.Writer, _ *socks5.Request) error {
	return socks5.SendReply(writer, statute.RepCommandNotSupported, nil)
}

// unresolved leaves names unresolved.
type unresolved struct{}

func (unresolved) Resolve(ctx context.Context, _ string) (context.Context, net.IP, error) {
	return ctx, nil, nil
}
