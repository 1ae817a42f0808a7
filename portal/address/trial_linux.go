package address

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
)

// Addresses for documentation (RFC 5737, RFC 3849): nobody has them.
var trialVIPs, trialClients = [...]netip.Addr{netip.MustParseAddr("192.0.2.117"), netip.MustParseAddr("2001:db8::117")},
	[...]netip.Addr{netip.MustParseAddr("192.0.2.118"), netip.MustParseAddr("2001:db8::118")}

// trialTime is how long an answer may take that comes from the same kernel. One packet is
// sent again meanwhile.
const trialTime = 1500 * time.Millisecond

// try finds out whether VIPs of a family can be in the space: whether what others, and the
// node, send to them gets there over the link, and the answer back, as the sender expects
// it. It leaves nothing on the node but the link.
func (l *link) try(family portal.Family, routes *kernel.Routes) error {
	if err := forwards(family); err != nil {
		return err
	}
	if _, err := l.connect([]portal.Family{family}); err != nil {
		return err
	}
	if err := tryExempting(family); err != nil {
		return err
	}
	vip, client := trialVIPs[family], trialClients[family]
	for _, addr := range []netip.Addr{vip, client} {
		if err := routes.Lead(addr, l.index, spaceEnd.gateway(family)); err != nil {
			return err
		}
		defer routes.Unlead(addr)
	}
	if from := sourceTo(vip); !from.IsGlobalUnicast() {
		return fmt.Errorf("this node has no address of %s that its processes would come from", family)
	}
	if err := refused(netip.Addr{}, vip); err != nil {
		return fmt.Errorf("a process of this node does not reach a VIP there: %w", err)
	}
	// Like a Pod: it comes in by one interface of the node, here the link itself, and goes
	// out by another, as rules for what is forwarded allow, and not only for the node.
	var err error
	l.space.do(func() { err = refused(client, vip) })
	if err != nil {
		return fmt.Errorf("what this node forwards does not reach a VIP there (a rule for FORWARD?): %w", err)
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
		return fmt.Errorf("this node does not forward packets to them: %s is 0", setting)
	}
	return nil // or it will be found out
}

// tryExempting finds out whether clients' addresses can be kept where they have to be.
func tryExempting(family portal.Family) error {
	before, _ := listChains()
	made, err := exempt(family, trialName)
	if made && !slices.ContainsFunc(before, isExemption) {
		_, err2 := removeExemptions()
		err = errors.Join(err, err2)
	}
	return err
}

// sourceTo returns the address that a process of this node comes to vip from.
func sourceTo(vip netip.Addr) netip.Addr {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(vip, 9))) // sends nothing
	if err != nil {
		return netip.Addr{}
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
}

// refused expects that nobody listens at a VIP, which the kernel says at once.
func refused(from, vip netip.Addr) error {
	domain, level, freebind := unix.AF_INET, unix.SOL_IP, unix.IP_FREEBIND
	if vip.Is6() {
		domain, level, freebind = unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_FREEBIND
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if from.IsValid() {
		if err = unix.SetsockoptInt(fd, level, freebind, 1); err == nil {
			err = unix.Bind(fd, sockaddr(from, 0))
		}
		if err != nil {
			return err
		}
	}
	if err := unix.Connect(fd, sockaddr(vip, 9)); err != unix.EINPROGRESS {
		return outcome(err)
	}
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	for deadline := time.Now().Add(trialTime); ; {
		n, err := unix.Poll(poll, int(max(0, time.Until(deadline).Milliseconds())))
		if err == unix.EINTR {
			continue
		}
		if n == 0 || err != nil {
			return errors.Join(errors.New("no answer"), err)
		}
		break
	}
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err
	}
	return outcome(unix.Errno(code))
}

// outcome is nil for a refusal.
func outcome(err error) error {
	switch err {
	case unix.ECONNREFUSED:
		return nil
	case nil, unix.Errno(0):
		return errors.New("somebody else answers there")
	}
	return err
}

func sockaddr(addr netip.Addr, port int) unix.Sockaddr {
	if addr.Is4() {
		return &unix.SockaddrInet4{Addr: addr.As4(), Port: port}
	}
	return &unix.SockaddrInet6{Addr: addr.As16(), Port: port}
}
