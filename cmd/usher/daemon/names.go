package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/proxy/socks"
)

// startNames answers for the names of Services, if that is wanted, until ctx ends. An
// address that the usher has from which this one takes over is tried until it is
// free.
func (d *Daemon) startNames(ctx context.Context) error {
	if d.names == nil {
		return nil
	}
	at := d.config.DNSAddress
	var packets net.PacketConn
	var listener net.Listener
	listen := func() (err error) {
		packets, listener, err = d.listenNames()
		return err
	}
	err := listen()
	switch {
	case err == nil, d.config.TakeOver && errors.Is(err, syscall.EADDRINUSE):
	case d.config.Netns != nil:
		return err
	default:
		return explainListen(at, err)
	}
	d.workers.Go(func() {
		if !retryListen(ctx, err, listen) {
			return
		}
		d.log.WithFields(logrus.Fields{"address": at.String(), "domain": d.names.Domain()}).Info("Answering for the names of Services")
		if err := d.names.Serve(ctx, packets, listener); err != nil {
			d.log.WithError(err).Error("The names of Services are not answered any more")
		}
	})
	return nil
}

// retryListen calls listen every 100 ms until it succeeds, and reports whether that was before ctx
// ended. failed is the error of the call before: where it is nil, there is nothing to retry.
func retryListen(ctx context.Context, failed error, listen func() error) bool {
	for ; failed != nil; failed = listen() {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(100 * time.Millisecond):
		}
	}
	return true
}

// listenNames opens both sockets for that, UDP and TCP.
func (d *Daemon) listenNames() (packets net.PacketConn, listener net.Listener, err error) {
	at := d.config.DNSAddress
	listenPacket := func() (net.PacketConn, error) { return net.ListenPacket("udp", at.String()) }
	listen := func() (net.Listener, error) { return net.Listen("tcp", at.String()) }
	if ns := d.config.Netns; ns != nil {
		listenPacket = func() (net.PacketConn, error) { return ns.ListenPacket(at) }
		listen = func() (net.Listener, error) { return ns.Listen(at) }
	}
	if packets, err = listenPacket(); err == nil {
		if listener, err = listen(); err != nil {
			packets.Close()
		}
	}
	return packets, listener, err
}

// explainListen adds to an error which setting it is about, and what to do.
func explainListen(at netip.AddrPort, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("--dns: %w: another resolver has it, perhaps; take another address, such as 127.0.0.153, or another port", err)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("--dns: %w: port %d needs root or CAP_NET_BIND_SERVICE; one from 1024 on does not", err, at.Port())
	}
	return fmt.Errorf("--dns: %w", err)
}

// startSOCKS starts the proxy for SOCKS and HTTP, if there is to be one. It accepts clients until
// ctx ends; connections go on until close. An address that the predecessor has is tried until it is free.
func (d *Daemon) startSOCKS(ctx context.Context) (close func(), err error) {
	if d.config.SOCKSAddress == "" {
		return func() {}, nil
	}
	var server *socks.Server
	listen := func() (err error) {
		server, err = socks.Listen(d.config.SOCKSAddress, d.proxy, d.log)
		return err
	}
	failed := listen()
	if failed != nil && !(d.config.TakeOver && errors.Is(failed, syscall.EADDRINUSE)) {
		return nil, fmt.Errorf("--socks: %w", failed)
	}
	ctx, cancel := context.WithCancel(ctx)
	var current atomic.Pointer[socks.Server]
	current.Store(server)
	var serving sync.WaitGroup
	serving.Go(func() {
		if !retryListen(ctx, failed, listen) {
			return
		}
		current.Store(server)
		d.logSOCKS(server)
		server.Serve(ctx)
	})
	return func() {
		cancel()
		if s := current.Load(); s != nil {
			s.Close()
		}
		serving.Wait()
	}, nil
}

// logSOCKS logs where the proxy is, and a warning if other machines reach it.
func (d *Daemon) logSOCKS(server *socks.Server) {
	d.log.WithField("address", server.Addr().String()).Info("Proxy for SOCKS and HTTP: Services can be reached by name, such as curl -x " + server.Addr().String() + " http://web.default/")
	if at := server.Addr().Addr(); !at.IsLoopback() {
		who := at.String()
		if at.IsUnspecified() {
			who = "any address of this machine"
		}
		d.log.Warnf("The proxy for SOCKS and HTTP asks nobody who they are, and whoever reaches %s can use it to connect to what this machine reaches", who)
	}
}
