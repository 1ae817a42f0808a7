package laptop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/dns"
	"github.com/usherproxy/usher/proxy/socks"
)

// SOCKS is a SOCKS5 and HTTP proxy that resolves the names of Services. It implements daemon.Server.
type SOCKS struct {
	HalfClosed time.Duration // that of socks.Server

	address, domain string

	end     context.CancelFunc
	server  atomic.Pointer[socks.Server] // nil until it listens
	serving sync.WaitGroup
}

// NewSOCKS returns a proxy that listens on address, "host:port". domain is the cluster's; "" means dns.DefaultDomain.
func NewSOCKS(address, domain string) (*SOCKS, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, fmt.Errorf("--socks: invalid value %q: must be HOST:PORT, such as 127.0.0.1:1080", address)
	}
	domain, err := dns.ParseDomain(domain)
	if err != nil {
		return nil, fmt.Errorf("--dns-domain: %w", err)
	}
	return &SOCKS{address: address, domain: strings.TrimSuffix(domain, ".")}, nil
}

// Start implements daemon.Server.
func (s *SOCKS) Start(ctx context.Context, p *proxy.Proxy, takeOver bool, log logrus.FieldLogger) error {
	var server *socks.Server
	listen := func() (err error) {
		if server, err = socks.Listen(s.address, s.domain, p, log); err == nil {
			server.HalfClosed = s.HalfClosed
		}
		return err
	}
	failed := listen()
	if failed != nil && !(takeOver && errors.Is(failed, syscall.EADDRINUSE)) {
		return fmt.Errorf("--socks: %w", failed)
	}
	ctx, s.end = context.WithCancel(ctx)
	s.server.Store(server)
	s.serving.Go(func() {
		if !retryListen(ctx, failed, listen, log) {
			return
		}
		s.server.Store(server)
		logSOCKS(server, log)
		server.Serve(ctx)
	})
	return nil
}

// Close implements daemon.Server.
func (s *SOCKS) Close() {
	s.end()
	if server := s.server.Load(); server != nil {
		server.Close()
	}
	s.serving.Wait()
}

// logSOCKS logs the proxy's address, and a warning if it is reachable from other machines.
func logSOCKS(server *socks.Server, log logrus.FieldLogger) {
	log.WithField("address", server.Addr().String()).Info("SOCKS5 and HTTP proxy started; reach Services by name, such as curl -x " + server.Addr().String() + " http://web.default/")
	if at := server.Addr().Addr(); !at.IsLoopback() {
		log.WithField("address", at).Warn("The SOCKS5 and HTTP proxy has no authentication: every client that reaches it can connect to everything that this machine reaches")
	}
}
