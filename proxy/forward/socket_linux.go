package forward

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Keepalive configures how a lost peer is detected (see tcp(7)). Its times are in whole seconds, at least one.
//
// If bytes to a lost peer are not acknowledged, the kernel sends no probes, but detects the loss after enough
// retransmissions (net.ipv4.tcp_retries2). TCP_USER_TIMEOUT would detect it sooner, but would also end connections
// whose peer is alive and does not read.
type Keepalive struct {
	Idle     time.Duration // time without data before the first probe
	Interval time.Duration // time between two probes
	Probes   int           // number of probes without an answer after which the peer counts as lost
}

func (k Keepalive) options() []option {
	seconds := func(d time.Duration) int { return max(1, int(d/time.Second)) }
	return []option{
		{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, seconds(k.Idle)},
		{"TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, seconds(k.Interval)},
		{"TCP_KEEPCNT", unix.IPPROTO_TCP, unix.TCP_KEEPCNT, k.Probes},
	}
}

// Set sets k for a socket, whose descriptor fd is, or for those that a listener accepts.
func (k Keepalive) Set(fd int) { _ = setOptions(fd, k.options()...) } // does not fail for an open socket

// Socket is the descriptor of a non-blocking TCP socket that is connected or connecting. Its owner closes it; no copy
// of the Socket value may be used after that.
type Socket int32

// ListenTCP opens a listener on addr, which is or will be an address of this node. Accepted sockets inherit keepalive
// k, and the options to send without delay (TCP_NODELAY) and to receive urgent bytes inline (SO_OOBINLINE).
//
// A client that requests MPTCP gets TCP: the kernel does not report the original destination of an MPTCP connection.
func (s Sockets) ListenTCP(addr netip.AddrPort, k Keepalive) (fd int, err error) {
	if fd, err = s.bind(addr, unix.SOCK_STREAM, unix.IPPROTO_TCP, append(k.options(), inline, noDelay, reuse)); err != nil {
		return -1, err
	}
	if err = unix.Listen(fd, backlog); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// backlog is the maximum number of connections that wait for accept(2). The kernel reduces it to net.core.somaxconn.
const backlog = 1<<16 - 1

// BindSCTP opens an SCTP socket on addr, which need not be an address of this node yet.
func (s Sockets) BindSCTP(addr netip.AddrPort) (fd int, err error) {
	return s.bind(addr, unix.SOCK_STREAM, unix.IPPROTO_SCTP, nil)
}

// bind opens a socket on addr. It sets listenOptions and options, which are needed, and those of optional that can be
// set.
func (s Sockets) bind(addr netip.AddrPort, kind, protocol int, options []option, optional ...option) (fd int, err error) {
	if s == nil {
		s = unix.Socket
	}
	if fd, err = s(domain(addr.Addr()), kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol); err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	if err = setOptions(fd, append(listenOptions(addr.Addr()), options...)...); err == nil {
		for _, o := range optional {
			_ = setOptions(fd, o)
		}
		err = unix.Bind(fd, Sockaddr(addr))
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// listenOptions returns the options of the listeners of all protocols. A VIP may be bound before it is an address of
// this node. For IPv6, answers may also need FREEBIND: portals can make a VIP local by a route instead of on an
// interface (ip6_datagram_send_ctl in the kernel).
func listenOptions(addr netip.Addr) []option {
	if addr.Is4() {
		return []option{{"IP_FREEBIND", unix.IPPROTO_IP, unix.IP_FREEBIND, 1}}
	}
	return []option{{"IPV6_V6ONLY", unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1}, {"IPV6_FREEBIND", unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1}}
}

// Accept returns the next client of a listener and the client's address. The error is unix.EAGAIN if there is none.
func Accept(listener int) (Socket, netip.AddrPort, error) {
	var peer Peer
	peer.length = uint32(len(peer.raw))
	for {
		fd, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(listener), uintptr(unsafe.Pointer(&peer.raw)), uintptr(unsafe.Pointer(&peer.length)),
			unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0, 0)
		switch errno {
		case 0:
			return Socket(fd), peer.AddrPort(), nil
		case unix.EINTR:
			continue
		}
		return -1, netip.AddrPort{}, errno
	}
}

// connectTCP starts a connection to addr. from is the source address (see BindTransparent); if its port is taken, any
// other is used. If from is the zero AddrPort, the kernel picks the address. The hop limit is set to hops, and
// IP_LOCAL_PORT_RANGE to few (see localPorts.few), unless these are 0. If data is set, the last ACK of the handshake is
// sent with the first bytes. The socket has no TCP_NODELAY yet; see edge.undelay. The error is or wraps a unix.Errno.
func (l *Loop) connectTCP(from, addr netip.AddrPort, hops, few int, data bool) (Socket, error) {
	fd, err := l.beginTCP(from, addr, hops, few, data)
	if err == unix.EADDRNOTAVAIL && from.Port() != 0 {
		from = netip.AddrPortFrom(from.Addr(), 0)
		fd, err = l.beginTCP(from, addr, hops, few, data)
	}
	return fd, err
}

func (l *Loop) beginTCP(from, addr netip.AddrPort, hops, few int, data bool) (Socket, error) {
	fd, err := unix.Socket(domain(addr.Addr()), unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		return -1, err
	}
	if few != 0 { // an older kernel does not know the option and tries all ports
		_ = setOptions(fd, option{"IP_LOCAL_PORT_RANGE", unix.IPPROTO_IP, unix.IP_LOCAL_PORT_RANGE, few})
	}
	options := append(make([]option, 0, 3), inline)
	if data {
		options = append(options, option{"TCP_QUICKACK", unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0})
	}
	if l.mark != 0 {
		options = append(options, option{"SO_MARK", unix.SOL_SOCKET, unix.SO_MARK, int(l.mark)})
	}
	if err = setOptions(fd, options...); err == nil && hops > 0 {
		err = SetHops(fd, addr.Addr(), hops)
	}
	if err == nil && from.IsValid() {
		// With these options, connections to different addresses can share a local port.
		if from.Port() != 0 {
			_ = setOptions(fd, reuse)
		} else {
			_ = setOptions(fd, option{"IP_BIND_ADDRESS_NO_PORT", unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1})
		}
		err = BindTransparent(fd, from)
	}
	if err == nil {
		err = connect(fd, addr)
	}
	if err == nil || err == unix.EINPROGRESS {
		// A socket may be connected to its own address: addr is an address of this node, no socket listens on its port,
		// and the kernel picks that port as the local one. Then the simultaneous open of TCP (RFC 9293, 3.5) succeeds,
		// and the socket receives its own bytes. If the range has changed since the start, picked may be wrong.
		picked := l.ports.last == 0 || l.ports.first <= addr.Port() && addr.Port() <= l.ports.last
		if from != addr && !picked {
			return Socket(fd), nil
		}
		if local, _ := LocalAddr(fd); local != addr {
			return Socket(fd), nil
		}
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // otherwise the port would stay in use for a minute
		err = unix.ECONNREFUSED
	}
	unix.Close(fd)
	return -1, err
}

// BindTransparent binds a socket to from, which need not be an address of this node (IP_TRANSPARENT, ip(7)). Port 0
// means any port. All its errors are EADDRNOTAVAIL, since none is the endpoint's fault.
func BindTransparent(fd int, from netip.AddrPort) error {
	if SetTransparent(fd, from.Addr()) != nil {
		return unix.EADDRNOTAVAIL
	}
	raw, length := RawSockaddr(from)
	_, _, errno := unix.RawSyscall(unix.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(&raw)), length)
	if errno != 0 {
		return unix.EADDRNOTAVAIL
	}
	return nil
}

// SetTransparent makes a socket of addr's family transparent (IP_TRANSPARENT, ip(7)). This process needs CAP_NET_ADMIN
// or CAP_NET_RAW.
func SetTransparent(fd int, addr netip.Addr) error {
	if addr.Is4() {
		return setOptions(fd, option{"IP_TRANSPARENT", unix.IPPROTO_IP, unix.IP_TRANSPARENT, 1})
	}
	return setOptions(fd, option{"IPV6_TRANSPARENT", unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT, 1})
}

// connect and setOptions are called for each connection. They do not block, so they need not notify Go's scheduler.

func connect(fd int, addr netip.AddrPort) error {
	raw, length := RawSockaddr(addr)
	if _, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&raw)), length); errno != 0 {
		return errno
	}
	return nil
}

// RawSockaddr returns an address in the kernel's format, and its length.
func RawSockaddr(addr netip.AddrPort) (raw [unix.SizeofSockaddrInet6]byte, length uintptr) {
	length = unix.SizeofSockaddrInet4
	binary.BigEndian.PutUint16(raw[2:], addr.Port())
	if addr.Addr().Is4() {
		binary.NativeEndian.PutUint16(raw[:], unix.AF_INET)
		a := addr.Addr().As4()
		copy(raw[4:], a[:])
	} else {
		length = unix.SizeofSockaddrInet6
		binary.NativeEndian.PutUint16(raw[:], unix.AF_INET6)
		a := addr.Addr().As16()
		copy(raw[8:], a[:])
	}
	return raw, length
}

// option is a socket option with an integer value.
type option struct {
	called             string // in errors
	level, name, value int
}

var (
	// inline makes urgent bytes part of the stream: otherwise reading skips them (socket(7)).
	inline = option{"SO_OOBINLINE", unix.SOL_SOCKET, unix.SO_OOBINLINE, 1}
	// noDelay makes the socket send without delay (tcp(7)).
	noDelay = option{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY, 1}
	reuse   = option{"SO_REUSEADDR", unix.SOL_SOCKET, unix.SO_REUSEADDR, 1}
)

// setOptions sets options up to the first that fails. Its error wraps a unix.Errno.
func setOptions(fd int, options ...option) error {
	for _, o := range options {
		v := int32(o.value)
		if _, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(o.level), uintptr(o.name), uintptr(unsafe.Pointer(&v)), 4, 0); errno != 0 {
			return fmt.Errorf("setting %s: %w", o.called, errno)
		}
	}
	return nil
}

// Hops returns the hop limit (IPv4: TTL) with which the handshake's last packet arrived; 0 if unknown. The kernel
// stores it in the accepted socket's field for the multicast hop limit (tcp_v4_syn_recv_sock, tcp_v6_syn_recv_sock).
func (s Socket) Hops() int {
	level, name := unix.IPPROTO_IP, unix.IP_MULTICAST_TTL
	if domain, _ := unix.GetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_DOMAIN); domain == unix.AF_INET6 {
		level, name = unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS
	}
	hops, err := unix.GetsockoptInt(int(s), level, name)
	if err != nil {
		return 0
	}
	return hops
}

// pending returns and clears the socket's error.
func (s Socket) pending() error {
	errno, err := unix.GetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && errno != 0 {
		err = unix.Errno(errno)
	}
	return err
}

// unsent returns the number of written bytes that the peer has not acknowledged. For SCTP, it counts their memory.
func (s Socket) unsent() int {
	n, err := unix.IoctlGetInt(int(s), unix.SIOCOUTQ) // see tcp(7); fails for SCTP
	if err == nil {
		return n
	}
	return int(memInfo(int(s))[5]) // SK_MEMINFO_WMEM_QUEUED: the memory of messages that the peer has not acknowledged
}

// memInfo returns SO_MEMINFO of a socket, or zeros before Linux 4.12. The indexes are in linux/sock_diag.h.
func memInfo(fd int) (info [9]uint32) {
	size := unsafe.Sizeof(info)
	_, _, _ = unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	return info
}

// Lost returns the number of datagrams that the kernel dropped because the socket's receive buffer was full.
func Lost(fd int) int { return int(memInfo(fd)[8]) } // SK_MEMINFO_DROPS

// unread returns the number of bytes that have arrived and are unread.
func (s Socket) unread() int {
	n, _ := unix.IoctlGetInt(int(s), unix.SIOCINQ) // tcp(7)
	return n
}

// read is recv(2) without blocking. It returns 0 without an error only at the end of the stream. It stops before an
// urgent byte, even if more bytes have arrived.
func (s Socket) read(b []byte, flags int) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unix.MSG_DONTWAIT|flags), 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
			continue
		}
		return 0, errno
	}
}

// write is send(2) without blocking.
func (s Socket) write(b []byte, flags int) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL|flags), 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
			continue
		}
		return 0, errno
	}
}

// discard removes the bytes in b, which were only peeked at, from the socket (MSG_TRUNC, tcp(7)).
func (s Socket) discard(b []byte) {
	for len(b) > 0 {
		n, err := s.read(b, unix.MSG_TRUNC)
		if n == 0 && err != unix.EAGAIN { // EAGAIN: a signal arrived, at an urgent byte
			return
		}
		b = b[n:]
	}
}

// atMark reports whether the next byte to be read is urgent.
func (s Socket) atMark() bool {
	at, _ := unix.IoctlGetInt(int(s), unix.SIOCATMARK) // tcp(7)
	return at != 0
}

// closeWrite sends FIN. An error means that the connection has ended already; reading from it returns why.
func (s Socket) closeWrite() {
	_, _, _ = unix.RawSyscall(unix.SYS_SHUTDOWN, uintptr(s), unix.SHUT_WR, 0)
}

// disconnect resets the connection, even if other processes have copies of the socket (connect(2), AF_UNSPEC).
func (s Socket) disconnect() {
	var raw [unix.SizeofSockaddrInet4]byte
	_, _, _ = unix.RawSyscall(unix.SYS_CONNECT, uintptr(s), uintptr(unsafe.Pointer(&raw)), uintptr(len(raw)))
}

// Close closes the socket. It does not block, unless SO_LINGER is set to more than 0 seconds.
func (s Socket) Close() error {
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(s), 0, 0)
	return nil
}

// TCPConn returns a connection of package net with a copy of the socket, and closes the socket.
func (s Socket) TCPConn() (*net.TCPConn, error) {
	f := os.NewFile(uintptr(s), "client")
	defer f.Close() // the connection has a copy
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// SetLinger is as in package net: after SetLinger(0), Close sends a reset.
func (s Socket) SetLinger(seconds int) error {
	l := unix.Linger{Onoff: 1, Linger: int32(seconds)}
	if seconds < 0 {
		l = unix.Linger{}
	}
	return unix.SetsockoptLinger(int(s), unix.SOL_SOCKET, unix.SO_LINGER, &l)
}

// receiveBuffer is the receive buffer size of a listener's UDP socket, to which many clients send. The kernel limits it
// to net.core.rmem_max.
const receiveBuffer = 4 << 20

// ListenUDP opens a UDP socket on addr. No other socket can share its port, since it has neither SO_REUSEADDR nor
// SO_REUSEPORT. Each datagram is received with its hop limit, the count of lost datagrams and, if addr is unspecified,
// its destination address (see Control).
func (s Sockets) ListenUDP(addr netip.AddrPort) (fd int, err error) {
	packetInfo, hops := option{"IP_PKTINFO", unix.IPPROTO_IP, unix.IP_PKTINFO, 1}, option{"IP_RECVTTL", unix.IPPROTO_IP, unix.IP_RECVTTL, 1}
	if addr.Addr().Is6() {
		packetInfo, hops = option{"IPV6_RECVPKTINFO", unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1}, option{"IPV6_RECVHOPLIMIT", unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1}
	}
	var needed []option
	if addr.Addr().IsUnspecified() {
		needed = append(needed, packetInfo)
	}
	return s.bind(addr, unix.SOCK_DGRAM, 0, needed,
		hops, option{"SO_RXQ_OVFL", unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1}, option{"SO_RCVBUF", unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer})
}

// ConnectUDP opens a UDP socket that is connected to addr. It receives only datagrams from addr, and the ICMP errors
// for its own datagrams. The caller takes these errors with TakeErrors when a read or a send fails, even with EAGAIN.
// from is the source address (see BindTransparent); if its port is taken, the kernel picks one. If from is the zero
// AddrPort, the kernel picks one. mark is set on the socket's packets (SO_MARK, socket(7)) if it is not 0.
func ConnectUDP(mark uint32, from netip.AddrPort, addr netip.AddrPort) (int, error) {
	fd, err := unix.Socket(domain(addr.Addr()), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	if mark != 0 {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(mark))
	}
	if err == nil && from.IsValid() {
		if err = BindTransparent(fd, from); err != nil && from.Port() != 0 {
			err = BindTransparent(fd, netip.AddrPortFrom(from.Addr(), 0))
		}
	}
	if err == nil {
		level, option := unix.IPPROTO_IPV6, unix.IPV6_RECVERR
		if addr.Addr().Is4() {
			level, option = unix.IPPROTO_IP, unix.IP_RECVERR
		}
		_ = unix.SetsockoptInt(fd, level, option, 1) // without it, the kernel does not report that a host does not respond
		err = connect(fd, addr)
	}
	// As in TCP, the socket may be connected to itself: see beginTCP. By default, the kernel picks no port below 1024
	// (net.ipv4.ip_local_port_range).
	if err == nil && addr.Port() >= 1024 {
		if local, _ := LocalAddr(fd); local == addr {
			err = unix.ECONNREFUSED // as if no socket were bound to addr
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// ICMPKind is the kind of an ICMP error.
type ICMPKind uint8

// Values of ICMPKind.
const (
	ICMPNone      ICMPKind = iota
	ICMPHard               // any other; the errno says whether the destination is unreachable
	ICMPSoft               // it may be reachable: no route, its host does not respond, or ICMPHard from another host
	ICMPHops               // the hop limit was reached
	ICMPFragments          // not all fragments of a datagram arrived in time
)

// icmpKinds are the kinds other than ICMPHard, by origin (SO_EE_ORIGIN_ICMP in linux/errqueue.h), type and code. Soft
// are those that icmp_err_convert (net/ipv4/icmp.c) and tab_unreach (net/ipv6/icmp.c) call not fatal.
var icmpKinds = map[[3]byte]ICMPKind{
	{unix.SO_EE_ORIGIN_ICMP, 3, 0}:  ICMPSoft, // RFC 792
	{unix.SO_EE_ORIGIN_ICMP, 3, 1}:  ICMPSoft,
	{unix.SO_EE_ORIGIN_ICMP, 3, 11}: ICMPSoft, // RFC 1122
	{unix.SO_EE_ORIGIN_ICMP, 3, 12}: ICMPSoft,
	{unix.SO_EE_ORIGIN_ICMP, 11, 0}: ICMPHops,
	{unix.SO_EE_ORIGIN_ICMP, 11, 1}: ICMPFragments,
	{unix.SO_EE_ORIGIN_ICMP6, 1, 0}: ICMPSoft, // RFC 4443
	{unix.SO_EE_ORIGIN_ICMP6, 1, 2}: ICMPSoft,
	{unix.SO_EE_ORIGIN_ICMP6, 1, 3}: ICMPSoft,
	{unix.SO_EE_ORIGIN_ICMP6, 3, 0}: ICMPHops,
	{unix.SO_EE_ORIGIN_ICMP6, 3, 1}: ICMPFragments,
}

// TakeErrors empties the error queue of a socket of ConnectUDP (IP_RECVERR, ip(7)). It returns the last ICMP error; 0
// and ICMPNone if there is none. An earlier error is lost; a later datagram may cause it again. While the queue is not
// empty, epoll reports an error.
//
// Any host that may send ICMP can forge an error with its own address as the source: the kernel compares only the
// quoted ports and addresses with the socket's. Therefore an error counts as ICMPHard only if its source is the
// destination, or if it reports that a datagram is too big.
func TakeErrors(fd int) (last unix.Errno, kind ICMPKind) {
	var control [256]byte
	for range 64 { // a limit: errors may arrive as fast as they are taken, and the caller has other sockets
		_, n, _, _, err := unix.Recvmsg(fd, nil, control[:], unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if err != nil {
			break
		}
		messages, _ := unix.ParseSocketControlMessage(control[:n]) // a message of the kernel is valid
		for _, m := range messages {
			if m.Header.Type != unix.IP_RECVERR && m.Header.Type != unix.IPV6_RECVERR || len(m.Data) < sizeofExtendedErr {
				continue
			}
			code := [3]byte(m.Data[4:7])
			if code[0] == unix.SO_EE_ORIGIN_ICMP || code[0] == unix.SO_EE_ORIGIN_ICMP6 {
				last, kind = unix.Errno(binary.NativeEndian.Uint32(m.Data)), max(ICMPHard, icmpKinds[code])
				sender := NewPeer(m.Data[sizeofExtendedErr:]) // SO_EE_OFFENDER
				if kind == ICMPHard && last != unix.EMSGSIZE && sender.AddrPort().Addr() != peerAddr(fd) {
					kind = ICMPSoft
				}
			}
		}
	}
	return last, kind
}

// sizeofExtendedErr is the size of a struct sock_extended_err. The sender's socket address follows it.
const sizeofExtendedErr = 16

// peerAddr returns the address that a socket is connected to; the zero Addr if there is none.
func peerAddr(fd int) netip.Addr {
	var p Peer
	p.length = uint32(len(p.raw))
	_, _, _ = unix.RawSyscall(unix.SYS_GETPEERNAME, uintptr(fd), uintptr(unsafe.Pointer(&p.raw)), uintptr(unsafe.Pointer(&p.length)))
	return p.AddrPort().Addr()
}

// SetHops sets the hop limit (IPv4: TTL) of packets from a socket to addr.
func SetHops(fd int, addr netip.Addr, hops int) error {
	if addr.Is4() {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, hops)
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hops)
}

// Sockets is the function that creates the sockets of listeners, with the arguments of socket(2). Nil means socket(2).
// Another function may create the sockets in another network namespace, where they then listen.
type Sockets func(domain, kind, protocol int) (fd int, err error)

// Peer is a socket address in the kernel's format: a struct sockaddr_in or sockaddr_in6. It is comparable.
type Peer struct {
	raw    [unix.SizeofSockaddrInet6]byte
	length uint32
}

// NewPeer is the inverse of Peer.Raw, which must have returned raw. For other bytes, the Peer is invalid.
func NewPeer(raw []byte) (p Peer) {
	p.length = uint32(copy(p.raw[:], raw))
	return p
}

// Raw returns the bytes that identify p.
func (p *Peer) Raw() []byte { return p.raw[:p.length] }

// AddrPort converts p to netip; an IPv6 link-local address loses its zone.
func (p *Peer) AddrPort() netip.AddrPort {
	port := binary.BigEndian.Uint16(p.raw[2:])
	switch binary.NativeEndian.Uint16(p.raw[:]) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(p.raw[4:8])), port)
	case unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(p.raw[8:24])).Unmap(), port)
	}
	return netip.AddrPort{}
}

// LocalAddr returns the address that a socket is bound to. Unlike [unix.Getsockname], it does not also ask the kernel
// for the protocol.
func LocalAddr(fd int) (netip.AddrPort, error) {
	var p Peer
	p.length = uint32(len(p.raw))
	if _, _, errno := unix.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&p.raw)), uintptr(unsafe.Pointer(&p.length))); errno != 0 {
		return netip.AddrPort{}, fmt.Errorf("getsockname: %w", errno)
	}
	at := p.AddrPort()
	if !at.IsValid() {
		return at, errors.New("getsockname: not an Internet address")
	}
	return at, nil
}

func domain(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// Sockaddr converts an address for package unix.
func Sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}
