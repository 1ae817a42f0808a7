package main

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
	"github.com/spf13/pflag"

	"github.com/usherproxy/usher/proxy/dns"
)

// dnsFlags say where the names of Services are answered.
type dnsFlags struct {
	address   string
	domain    string
	upstreams []string
}

func (f *dnsFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.address, "dns", "", "`address` at which the names of Services are answered (UDP and TCP; port 53, or address:port); empty means nowhere")
	f.registerDomain(flags)
	flags.StringSliceVar(&f.upstreams, "dns-upstream", nil, "`addresses` of the resolvers that are asked for all other names; empty means those in "+dns.DefaultResolvConf)
}

func (f *dnsFlags) registerDomain(flags *pflag.FlagSet) {
	flags.StringVar(&f.domain, "dns-domain", dns.DefaultDomain, "the cluster's `domain`, in which the names of Services are")
}

// newServer returns what answers, and where; nil if the flags do not want it.
func (f *dnsFlags) newServer(log logrus.FieldLogger) (*dns.Server, netip.AddrPort, error) {
	if f.address == "" {
		return nil, netip.AddrPort{}, nil
	}
	at, err := dns.ParseServer(f.address)
	if err != nil {
		return nil, at, usagef("--dns: %w", err)
	}
	o := dns.Options{Domain: f.domain, Self: at, Log: log}
	for _, u := range f.upstreams {
		server, err := dns.ParseServer(u)
		if err != nil {
			return nil, at, usagef("--dns-upstream: %w", err)
		}
		o.Upstreams = append(o.Upstreams, server)
	}
	s, err := dns.New(o)
	if err != nil {
		return nil, at, usagef("--dns-domain: %w", err)
	}
	return s, at, nil
}

// startDNS answers for the names of Services, if that is wanted, until ctx ends. An
// address that the usher has from which this one takes over is tried until it is
// free.
func (s *server) startDNS(ctx context.Context, workers *sync.WaitGroup) error {
	if s.names == nil {
		return nil
	}
	listen := s.listenNames
	if listen == nil {
		listen = listenDNS
	}
	pc, l, err := listen(s.namesAt)
	if err != nil && !(s.takeOver && errors.Is(err, syscall.EADDRINUSE)) {
		return err
	}
	workers.Go(func() {
		for ; err != nil; pc, l, err = listen(s.namesAt) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
		s.log.WithFields(logrus.Fields{"address": s.namesAt.String(), "domain": s.names.Domain()}).Info("Answering for the names of Services")
		if err := s.names.Serve(ctx, pc, l); err != nil {
			s.log.WithError(err).Error("The names of Services are not answered any more")
		}
	})
	return nil
}

// listenDNS opens both sockets of an address.
func listenDNS(at netip.AddrPort) (net.PacketConn, net.Listener, error) {
	pc, err := net.ListenPacket("udp", at.String())
	if err != nil {
		return nil, nil, explainListen(at, err)
	}
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		pc.Close()
		return nil, nil, explainListen(at, err)
	}
	return pc, l, nil
}

// explainListen adds to an error what to do about it.
func explainListen(at netip.AddrPort, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("--dns: %w: another resolver has it, perhaps; take another address, such as 127.0.0.153, or another port", err)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("--dns: %w: port %d needs root or CAP_NET_BIND_SERVICE; one from 1024 on does not", err, at.Port())
	}
	return fmt.Errorf("--dns: %w", err)
}
