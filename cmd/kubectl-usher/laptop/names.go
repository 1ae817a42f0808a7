package laptop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal/netns"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/dns"
)

// Names is a DNS server for the names of Services, over UDP and TCP. It implements daemon.Names.
type Names struct {
	at     netip.AddrPort
	netns  *netns.Namespace // nil for this process's
	server *dns.Server

	end     context.CancelFunc
	serving sync.WaitGroup
}

// NewNames returns a server that listens on at, in netns unless that is nil. Without netns, it sets o.Self to at: an
// upstream might be the server itself. Queries from this process do not arrive in another namespace.
func NewNames(at netip.AddrPort, o dns.Options, netns *netns.Namespace) (*Names, error) {
	if netns == nil {
		o.Self = at
	}
	server, err := dns.New(o)
	if err != nil {
		return nil, fmt.Errorf("--dns-domain: %w", err)
	}
	return &Names{at: at, netns: netns, server: server}, nil
}

// Start implements daemon.Server.
func (n *Names) Start(ctx context.Context, _ *proxy.Proxy, takeOver bool, log logrus.FieldLogger) error {
	var packets net.PacketConn
	var listener net.Listener
	listen := func() (err error) {
		packets, listener, err = n.listen()
		return err
	}
	err := listen()
	switch {
	case err == nil, takeOver && errors.Is(err, syscall.EADDRINUSE):
	case n.netns != nil:
		return err
	default:
		return explainListen(n.at, err)
	}
	ctx, n.end = context.WithCancel(ctx)
	n.serving.Go(func() {
		if !retryListen(ctx, err, listen, log) {
			return
		}
		log.WithFields(logrus.Fields{"address": n.at.String(), "domain": n.server.Domain()}).Info("DNS server for Service names started")
		if err := n.server.Serve(ctx, packets, listener); err != nil {
			log.WithError(err).Error("DNS server for Service names failed")
		}
	})
	return nil
}

// Close implements daemon.Server.
func (n *Names) Close() {
	n.end()
	n.serving.Wait()
}

// Apply implements daemon.Names.
func (n *Names) Apply(services []config.Service) { n.server.Apply(services) }

// Queries implements daemon.Names.
func (n *Names) Queries() map[[2]string]int64 { return n.server.Queries() }

// retryListen calls listen every 10 ms until it succeeds, and reports whether it did before ctx ended. failed is the
// error of the previous call; if it is nil, retryListen returns true at once. After a second, it logs the error:
// another program than the previous usher may use the address.
func retryListen(ctx context.Context, failed error, listen func() error, log logrus.FieldLogger) bool {
	tries := 0
	return failed == nil || wait.PollUntilContextCancel(ctx, 10*time.Millisecond, false, func(context.Context) (bool, error) {
		err := listen()
		if tries++; err != nil && tries == 100 {
			log.WithError(err).Warn("Waiting for a listen address, which another process may use")
		}
		return err == nil, nil
	}) == nil
}

// listen opens both sockets, UDP and TCP.
func (n *Names) listen() (packets net.PacketConn, listener net.Listener, err error) {
	listenPacket := func() (net.PacketConn, error) { return net.ListenPacket("udp", n.at.String()) }
	listen := func() (net.Listener, error) { return net.Listen("tcp", n.at.String()) }
	if n.netns != nil {
		listenPacket = func() (net.PacketConn, error) { return n.netns.ListenPacket(n.at) }
		listen = func() (net.Listener, error) { return n.netns.Listen(n.at) }
	}
	if packets, err = listenPacket(); err == nil {
		if listener, err = listen(); err != nil {
			packets.Close()
		}
	}
	return packets, listener, err
}

// explainListen adds the flag and a remedy to an error.
func explainListen(at netip.AddrPort, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("--dns: %w: another resolver may use it; set another address, such as 127.0.0.153, or another port", err)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("--dns: %w: port %d requires root or CAP_NET_BIND_SERVICE; use a port from 1024 on", err, at.Port())
	}
	return fmt.Errorf("--dns: %w", err)
}
