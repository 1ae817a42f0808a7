package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/spf13/pflag"

	"github.com/usherproxy/usher/proxy/socks"
)

// socksFlags say whether Services can be reached through SOCKS.
type socksFlags struct{ address string }

func (f *socksFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.address, "socks", "", "`host:port` for a SOCKS5 server that leads to Services by name, and to everything else directly; without a host 127.0.0.1; empty means none")
}

func (f *socksFlags) check() error {
	if f.address == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(f.address); err != nil {
		return usagef("--socks: %q is not HOST:PORT such as 127.0.0.1:1080", f.address)
	}
	return nil
}

// startSOCKS starts the SOCKS server, if there is to be one. It accepts clients until
// ctx ends.
func (s *server) startSOCKS(ctx context.Context) (close func(), err error) {
	if s.socks.address == "" {
		return func() {}, nil
	}
	server, err := socks.Listen(s.socks.address, s.proxy, s.log)
	if err != nil {
		return nil, fmt.Errorf("--socks: %w", err)
	}
	s.log.WithField("address", server.Addr().String()).Info("SOCKS server: Services can be reached by name, such as curl -x socks5h://" + server.Addr().String())
	if at := server.Addr().Addr(); !at.IsLoopback() {
		s.log.Warnf("The SOCKS server asks nobody who they are, and whoever reaches %s can use it to connect to what this machine reaches", describe(at))
	}
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(ctx) })
	return func() {
		server.Close()
		serving.Wait()
	}, nil
}

func describe(at netip.Addr) string {
	if at.IsUnspecified() {
		return "any address of this machine"
	}
	return at.String()
}
