package address

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
)

// Addresses for documentation (RFC 5737, RFC 3849), which no host has.
var selfTestVIPs, selfTestClients = [...]netip.Addr{netip.MustParseAddr("192.0.2.117"), netip.MustParseAddr("2001:db8::117")},
	[...]netip.Addr{netip.MustParseAddr("192.0.2.118"), netip.MustParseAddr("2001:db8::118")}

const (
	// selfTestTime is the time limit for an answer from the same kernel. It allows for one retransmission.
	selfTestTime = 1500 * time.Millisecond
	// selfTestPort is the port of the test's listener.
	selfTestPort = 11700
)

// try tests whether VIPs of a family can be in the space. Packets from other hosts and from the node must reach it over
// the link with their source address, and answers must return. try leaves the link and the exemption on the node.
func (l *link) try(family portal.Family, routes *kernel.Routes) error {
	if err := forwards(family); err != nil {
		return err
	}
	if _, err := l.connect([]portal.Family{family}); err != nil {
		return err
	}
	if _, err := exempt(family); err != nil {
		return err
	}
	vip, client := selfTestVIPs[family], selfTestClients[family]
	for _, addr := range []netip.Addr{vip, client} {
		if err := routes.AddVia(addr, l.index, spaceEnd.gateway(family)); err != nil {
			return err
		}
		defer routes.RemoveVia(addr)
	}
	if from, _ := kernel.SourceTo(netip.AddrPortFrom(vip, selfTestPort)); !from.IsGlobalUnicast() {
		return fmt.Errorf("this node has no %s address as a source for its processes", family)
	}
	if err := l.reaches(vip, netip.Addr{}); err != nil {
		return fmt.Errorf("a process on this node cannot reach a VIP there: %w", err)
	}
	// The node forwards these packets like a Pod's, though here the link is both the incoming and the outgoing
	// interface. So they pass only if rules allow forwarding.
	if err := l.reaches(vip, client); err != nil {
		return fmt.Errorf("forwarded packets do not reach a VIP there (blocked by a FORWARD rule?): %w", err)
	}
	return nil
}

// forwards returns an error if the node does not forward packets.
func forwards(family portal.Family) error {
	setting := "net.ipv4.ip_forward"
	if family.Is6() {
		setting = "net.ipv6.conf.all.forwarding"
	}
	value, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(setting, ".", "/"))
	if err == nil && strings.TrimSpace(string(value)) == "0" {
		return fmt.Errorf("this node does not forward packets to VIPs: %s is 0", setting)
	}
	return nil // otherwise the test shows it
}

// reaches tests that a connection to a VIP arrives there, with the client's source address. A failed connection alone
// would prove less: a firewall refuses too.
func (l *link) reaches(vip, from netip.Addr) error {
	var (
		listener net.Listener
		err      error
		dialer   = net.Dialer{Timeout: selfTestTime, Control: freebind}
		config   = net.ListenConfig{Control: freebind}
		connect  = func() (conn net.Conn, err error) { return dialer.Dial("tcp", listener.Addr().String()) }
	)
	l.space.do(func() {
		listener, err = config.Listen(context.Background(), "tcp", netip.AddrPortFrom(vip, selfTestPort).String())
	})
	if err != nil {
		return err
	}
	defer listener.Close()
	var client net.Conn
	if from.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
		l.space.do(func() { client, err = connect() })
	} else {
		client, err = connect()
	}
	if err != nil {
		return err
	}
	defer client.Close()
	if err := listener.(*net.TCPListener).SetDeadline(time.Now().Add(selfTestTime)); err != nil {
		return err
	}
	server, err := listener.Accept()
	if err != nil {
		return fmt.Errorf("another process answers there: %w", err)
	}
	defer server.Close()
	if is, seen := client.LocalAddr().String(), server.RemoteAddr().String(); is != seen {
		return fmt.Errorf("source address is %s there instead of %s", seen, is)
	}
	return nil
}

// freebind lets a socket be bound to an address that the host does not have.
func freebind(network, _ string, raw syscall.RawConn) (err error) {
	level, option := unix.SOL_IP, unix.IP_FREEBIND
	if network == "tcp6" {
		level, option = unix.SOL_IPV6, unix.IPV6_FREEBIND
	}
	failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) })
	return errors.Join(failed, err)
}
