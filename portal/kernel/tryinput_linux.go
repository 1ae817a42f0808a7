package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
)

// TryInput sends a SYN up to tryInputTimes times, or twice as often if it finds no rule that drops it: this node may
// just be busy. It waits tryInputTime for each answer.
const (
	tryInputTimes = 3
	tryInputTime  = 200 * time.Millisecond
)

// tryInputNode are the node's addresses on the device, by family. The next addresses are the clients', by the device's
// number, so that several concurrent tries do not collide.
var tryInputNode = map[bool]netip.Addr{false: netip.MustParseAddr("192.0.0.120"), true: netip.MustParseAddr("fd75:7368:6572::120")}

// TryInput begins a TCP connection, as a Pod would, to an address that this node serves. Its SYN comes in by an
// interface other than lo, and so passes the rules of PREROUTING and INPUT. It returns the rejection, or "" if the SYN
// was accepted. For the unspecified address it uses this node's address on the interface. The interface is a TUN
// device, which the kernel removes when TryInput returns or this process is killed. An error means that the connection
// could not be tried: that requires CAP_NET_ADMIN and /dev/net/tun.
//
// The result applies to a client and an interface without rules of their own: other clients may get other results.
func TryInput(ctx context.Context, to netip.AddrPort) (refusal string, err error) {
	ip6 := to.Addr().Is6()
	tun, client, err := openTryInput(ip6)
	if err != nil {
		return "", fmt.Errorf("creating a TUN device: %w", err)
	}
	defer tun.Close()
	if to.Addr().IsUnspecified() {
		to = netip.AddrPortFrom(tryInputNode[ip6], to.Port())
	}
	defer context.AfterFunc(ctx, func() { _ = tun.SetReadDeadline(time.Now()) })()
	from := netip.AddrPortFrom(client, 1024+uint16(time.Now().UnixNano()%60000))
	const isn = 1
	packet := make([]byte, 1500)
	sent := 0
	for ctx.Err() == nil && sent < 2*tryInputTimes {
		if sent == tryInputTimes {
			if chains, _ := InputDrops(); len(chains) > 0 {
				break
			}
		}
		sent++
		if _, err := tun.Write(tcpSegment(from, to, isn, tcpSYN)); err != nil {
			return "", fmt.Errorf("sending: %w", err)
		}
		if err := tun.SetReadDeadline(time.Now().Add(tryInputTime)); err != nil {
			return "", err
		}
		for ctx.Err() == nil {
			n, err := tun.Read(packet)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return "", fmt.Errorf("receiving: %w", err)
			}
			switch flags, unreachable := answerTo(packet[:n], from, to); {
			case unreachable:
				return "was rejected by ICMP", nil
			case flags&tcpRST != 0:
				return "was reset", nil
			case flags&tcpSYN != 0:
				_, err := tun.Write(tcpSegment(from, to, isn+1, tcpRST))
				return "", err
			}
		}
	}
	return fmt.Sprintf("got no response within %s", time.Duration(sent)*tryInputTime), ctx.Err()
}

// openTryInput makes the device. This process is its far end, the client.
func openTryInput(ip6 bool) (tun *os.File, client netip.Addr, err error) {
	fd, link, err := OpenTun(tryInputDevice + "%d")
	if err != nil {
		return nil, client, err
	}
	name := link.Attrs().Name
	tun = os.NewFile(uintptr(fd), name)
	// With an address, which REDIRECT requires, and a route to its peer.
	number, err := strconv.Atoi(strings.TrimPrefix(name, tryInputDevice))
	client = tryInputNode[ip6]
	for range number%100 + 1 {
		client = client.Next()
	}
	if err == nil {
		err = netlink.AddrAdd(link, &netlink.Addr{IPNet: Alone(tryInputNode[ip6]), Peer: Alone(client), Flags: unix.IFA_F_NODAD})
	}
	if err != nil {
		tun.Close()
		return nil, client, fmt.Errorf("assigning address %s: %w", tryInputNode[ip6], err)
	}
	return tun, client, nil
}

// OpenTun makes a TUN device, which is up, and returns its descriptor. The kernel replaces %d in name by a number. The
// device is removed when the descriptor is closed.
func OpenTun(name string) (fd int, link netlink.Link, err error) {
	if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
		return -1, nil, err
	}
	ifr, err := unix.NewIfreq(name)
	if err == nil {
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}
	if err == nil {
		link, err = netlink.LinkByName(ifr.Name())
	}
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		unix.Close(fd)
		return -1, nil, err
	}
	return fd, link, nil
}

// tryInputDevice is the prefix of the devices' names.
const tryInputDevice = "usher-try"

const (
	tcpSYN = 2
	tcpRST = 4
)

// tcpSegment returns an IP packet with an empty TCP segment.
func tcpSegment(from, to netip.AddrPort, seq uint32, flags byte) []byte {
	tcp := make([]byte, 20)
	binary.BigEndian.PutUint16(tcp, from.Port())
	binary.BigEndian.PutUint16(tcp[2:], to.Port())
	binary.BigEndian.PutUint32(tcp[4:], seq)
	tcp[12], tcp[13], tcp[14] = 5<<4, flags, 0xff
	addresses := append(from.Addr().AsSlice(), to.Addr().AsSlice()...)
	binary.BigEndian.PutUint16(tcp[16:], internetChecksum(append([]byte{0, unix.IPPROTO_TCP, 0, 20}, addresses...), tcp))
	if to.Addr().Is6() {
		return append(append([]byte{0x60, 0, 0, 0, 0, 20, unix.IPPROTO_TCP, 64}, addresses...), tcp...)
	}
	head := append([]byte{0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, unix.IPPROTO_TCP, 0, 0}, addresses...)
	binary.BigEndian.PutUint16(head[10:], internetChecksum(head))
	return append(head, tcp...)
}

// internetChecksum returns the checksum of RFC 1071, over parts of even length.
func internetChecksum(parts ...[]byte) uint16 {
	var sum uint32
	for _, part := range parts {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// answerTo returns the TCP flags of an answer, and whether ICMP reports the destination unreachable. Other packets have
// neither.
func answerTo(packet []byte, from, to netip.AddrPort) (flags byte, unreachable bool) {
	family, head, protocol, dst, icmp, kind := portal.IPv4, 20, 9, 16, byte(unix.IPPROTO_ICMP), byte(3)
	if to.Addr().Is6() {
		family, head, protocol, dst, icmp, kind = portal.IPv6, 40, 6, 24, unix.IPPROTO_ICMPV6, 1
	}
	if len(packet) < head+20 || packet[0]>>4 == 6 != family.Is6() {
		return 0, false
	}
	if addr, _ := netip.AddrFromSlice(packet[dst:head]); addr != from.Addr() {
		return 0, false
	}
	body := packet[head:]
	switch packet[protocol] {
	case icmp:
		return 0, body[0] == kind
	case unix.IPPROTO_TCP:
		if binary.BigEndian.Uint16(body) == to.Port() && binary.BigEndian.Uint16(body[2:]) == from.Port() {
			return body[13], false
		}
	}
	return 0, false
}
