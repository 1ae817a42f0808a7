package main

import (
	"context"
	"net"
	"net/netip"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/portal/netns"
	"github.com/usherproxy/usher/proxy/localhost"
	"github.com/usherproxy/usher/proxy/uplink"
)

// dnsPort is where a resolv.conf(5) says that nameservers are.
const dnsPort = 53

// inside is the network namespace of a command, with what makes it like this
// machine: its localhost, and the way to other networks.
type inside struct {
	namespace *netns.Namespace
	loopback  *localhost.Mirror
	uplink    *uplink.Uplink // nil if there is no way to other networks
}

// newInside makes a network namespace in which /etc/resolv.conf is resolvConf.
func newInside(resolvConf string, log *logrus.Logger) (in *inside, err error) {
	in = &inside{}
	in.namespace, err = netns.Start(netns.Options{Self: []string{execInside}, ResolvConf: resolvConf})
	if err != nil {
		return nil, err
	}
	in.loopback = localhost.New(in.namespace.Socket)
	if err := in.lookOut(); err != nil {
		log.WithError(err).Error("Other networks cannot be reached from inside")
	}
	return in, nil
}

// lookOut makes other networks reachable.
func (in *inside) lookOut() error {
	tun, err := in.namespace.Tun()
	if err != nil {
		return err
	}
	in.uplink, err = uplink.Start(tun, netns.MTU)
	return err
}

// serve serves localhost until ctx ends.
func (in *inside) serve(ctx context.Context) {
	in.loopback.Refresh()
	go in.loopback.Run(ctx)
}

// listenNames opens the sockets of a nameserver inside.
func (in *inside) listenNames(at netip.AddrPort) (net.PacketConn, net.Listener, error) {
	packets, err := in.namespace.ListenPacket(at)
	if err != nil {
		return nil, nil, err
	}
	listener, err := in.namespace.Listen(at)
	if err != nil {
		packets.Close()
		return nil, nil, err
	}
	return packets, listener, nil
}

// leave ends the namespace with all that is in it.
func (in *inside) leave() {
	in.namespace.Close()
	if in.uplink != nil {
		in.uplink.Close()
	}
}
