//lint:file-ignore ST1001 checks are specs, and read like those in test files

package vm

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"sync"
	"unsafe"

	. "github.com/onsi/ginkgo/v2"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/test/lab"
)

// impair applies a tc-netem(8) qdisc to the packets sent out of a link.
func impair(ns *lab.Namespace, link string, how netlink.NetemQdiscAttrs) {
	GinkgoHelper()
	how.Limit = 1 << 16 // a full queue would lose more than requested
	ns.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		at := netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
		return netlink.QdiscReplace(netlink.NewNetem(at, how))
	})
}

// mend removes the impairment. Replacing a netem is not enough: it keeps attributes that the new one does not set.
func mend(ns *lab.Namespace, link string) {
	GinkgoHelper()
	ns.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		return netlink.QdiscDel(netlink.NewNetem(netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT}, netlink.NetemQdiscAttrs{}))
	})
}

// offloads are the features that ethtool(8) calls rx, tx, tso, gso and gro.
var offloads = []uint32{unix.ETHTOOL_SRXCSUM, unix.ETHTOOL_STXCSUM, unix.ETHTOOL_STSO, unix.ETHTOOL_SGSO, unix.ETHTOOL_SGRO}

// withoutOffloads makes a link behave like a wire: each packet is sent separately with its checksum, and a corrupted
// packet fails it. With offloads, a veth would pass on 64 KiB at once and skip the checksums. netem would then lose all
// of it or nothing.
func withoutOffloads(ns *lab.Namespace, link string) {
	GinkgoHelper()
	ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, offload := range offloads {
			off := struct{ command, value uint32 }{command: offload}
			request := struct { // netdevice(7)
				name [unix.IFNAMSIZ]byte
				data unsafe.Pointer
				_    [16]byte
			}{data: unsafe.Pointer(&off)}
			copy(request.name[:], link)
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
				return os.NewSyscallError("SIOCETHTOOL", errno)
			}
		}
		return nil
	})
}

// end is one end of a cable.
type end struct {
	ns   *lab.Namespace
	link string
}

// acquaint adds permanent neighbor entries for all addresses to both ends of a cable. A host is unreachable if three
// solicitations for its link address are not answered (RFC 4861, MAX_MULTICAST_SOLICIT). With 20 % loss that happens
// one time in 20, and a client gets the error at once. ARP (RFC 826) has no checksum either, so a corrupted answer is
// accepted.
func acquaint(a, b end) {
	GinkgoHelper()
	a.knows(b)
	b.knows(a)
}

func (e end) knows(other end) {
	GinkgoHelper()
	var neighbours []*netlink.Neigh
	other.ns.Do(func() error {
		l, err := netlink.LinkByName(other.link)
		if err != nil {
			return err
		}
		all, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		for _, a := range all {
			neighbours = append(neighbours, &netlink.Neigh{State: netlink.NUD_PERMANENT, IP: a.IP, HardwareAddr: l.Attrs().HardwareAddr})
		}
		return err
	})
	e.ns.Do(func() error {
		l, err := netlink.LinkByName(e.link)
		if err != nil {
			return err
		}
		for _, n := range neighbours {
			n.LinkIndex = l.Attrs().Index
			if err := netlink.NeighSet(n); err != nil {
				return fmt.Errorf("%s: neighbour %s: %w", e.link, n.IP, err)
			}
		}
		return nil
	})
}

// setSysctl sets a sysctl below net in a namespace.
func setSysctl(ns *lab.Namespace, name, value string) {
	GinkgoHelper()
	ns.Do(func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) })
}

func forwards(ns *lab.Namespace) {
	GinkgoHelper()
	setSysctl(ns, "ipv4/ip_forward", "1")
	setSysctl(ns, "ipv6/conf/all/forwarding", "1")
}

// move moves a link from one namespace to another.
func move(from *lab.Namespace, link string, to *lab.Namespace) {
	GinkgoHelper()
	var there netns.NsHandle
	to.Do(func() (err error) {
		there, err = netns.Get()
		return err
	})
	defer there.Close()
	from.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		return netlink.LinkSetNsFd(l, int(there))
	})
}

// addresses assigns addresses to a link and brings it up.
func addresses(ns *lab.Namespace, link string, all ...string) {
	GinkgoHelper()
	for _, a := range all {
		ns.Output("ip", "address", "add", a, "dev", link)
	}
	ns.Output("ip", "link", "set", link, "up")
}

// tally counts datagrams by content.
type tally struct {
	mu      sync.Mutex
	seen    map[string]int
	unclear map[string]bool
}

func (t *tally) add(datagram []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seen == nil {
		t.seen = map[string]int{}
	}
	t.seen[string(datagram)]++
}

// doubt marks a datagram that usher may carry or not.
func (t *tally) doubt(datagram []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.unclear == nil {
		t.unclear = map[string]bool{}
	}
	t.unclear[string(datagram)] = true
}

// isUnclear reports whether doubt was called for a datagram.
func (t *tally) isUnclear(datagram string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unclear[datagram]
}

// counts returns how often each datagram arrived.
func (t *tally) counts() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.seen)
}

// total returns the number of datagrams that arrived.
func (t *tally) total() (sum int) {
	for _, n := range t.counts() {
		sum += n
	}
	return sum
}

// tap counts the valid UDP datagrams from or to a port that come in through a link of the namespace. Datagrams that the
// network lost or corrupted are not counted. Corruption that the checksums miss can leave a frame to a group address or
// an IPv6 hop limit that is used up. The kernel accepts those for this node but does not forward them: they are
// unclear.
func tap(ns *lab.Namespace, link string, port uint16) *tally {
	GinkgoHelper()
	t := &tally{}
	fd := -1
	ns.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20); err != nil {
			return err
		}
		wait := unix.Timeval{Usec: 100_000}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: l.Attrs().Index})
	})
	stop, stopped := make(chan struct{}), make(chan struct{})
	DeferCleanup(func() {
		close(stop)
		<-stopped
		unix.Close(fd)
	})
	go func() {
		defer close(stopped)
		buf := make([]byte, 1<<16)
		for {
			select {
			case <-stop:
				return
			default:
			}
			n, from, err := unix.Recvfrom(fd, buf, 0)
			ll, ok := from.(*unix.SockaddrLinklayer)
			if err != nil || !ok || ll.Pkttype == unix.PACKET_OUTGOING || ll.Pkttype == unix.PACKET_OTHERHOST {
				continue
			}
			version := map[uint16]byte{htons(unix.ETH_P_IP): 4, htons(unix.ETH_P_IPV6): 6}[ll.Protocol]
			if n == 0 || buf[0]>>4 != version {
				continue
			}
			payload, source, destination, ok := soundUDP(buf[:n])
			switch {
			case !ok || source != port && destination != port:
			case ll.Pkttype != unix.PACKET_HOST || version == 6 && buf[7] <= 1:
				t.doubt(payload)
			default:
				t.add(payload)
			}
		}
	}()
	return t
}

// htons is the function of byteorder(3).
func htons(n uint16) uint16 { return binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n)) }

// soundUDP returns the payload of an IP packet that is a complete UDP datagram with valid checksums: RFC 768, 791,
// 8200.
func soundUDP(packet []byte) (payload []byte, source, destination uint16, ok bool) {
	var header, length int // lengths of the IP header and of the IP payload
	var pseudo []byte
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		header = int(packet[0]&15) * 4
		total := int(binary.BigEndian.Uint16(packet[2:]))
		if header < 20 || total < header || total > len(packet) || packet[9] != unix.IPPROTO_UDP || checksum(packet[:header]) != 0 {
			return nil, 0, 0, false
		}
		length, pseudo = total-header, packet[12:20]
	case len(packet) >= 40 && packet[0]>>4 == 6:
		header, length = 40, int(binary.BigEndian.Uint16(packet[4:]))
		if header+length > len(packet) || packet[6] != unix.IPPROTO_UDP {
			return nil, 0, 0, false
		}
		pseudo = packet[8:40]
	default:
		return nil, 0, 0, false
	}
	if length < 8 {
		return nil, 0, 0, false
	}
	datagram := packet[header : header+length]
	if int(binary.BigEndian.Uint16(datagram[4:])) != length {
		return nil, 0, 0, false
	}
	tail := binary.BigEndian.AppendUint16([]byte{0, unix.IPPROTO_UDP}, uint16(length))
	if checksum(pseudo, tail, datagram) != 0 {
		return nil, 0, 0, false
	}
	return datagram[8:], binary.BigEndian.Uint16(datagram), binary.BigEndian.Uint16(datagram[2:]), true
}

// checksum returns the checksum of RFC 1071. All parts except the last must have even length.
func checksum(parts ...[]byte) uint16 {
	var sum uint32
	for _, b := range parts {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(binary.BigEndian.Uint16(b))
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// Addresses of the host that newFar creates.
var (
	far4 = netip.MustParseAddr("172.16.9.2")
	far6 = netip.MustParseAddr("fd09::2")
)

func (f family) far() netip.Addr {
	if f.vip.Is4() {
		return far4
	}
	return far6
}

// newFar connects the node with a host that is three links away. The middle link has an MTU of 1280 bytes:
//
//	node ─── router ─── router ─── far
//	     1500      1280       1500
//
// The hosts at both ends learn that only when a router sends them an ICMP message.
func newFar(n *node) *lab.Namespace {
	GinkgoHelper()
	near, next, far := n.AddHost("to-far"), n.AddHost("to-next"), n.AddHost("to-last")
	move(n.Node, "to-next", near)
	move(n.Node, "to-last", next)
	addresses(n.Node, "to-far", "172.16.7.1/24", "fd07::1/64")
	addresses(near, "eth0", "172.16.7.2/24", "fd07::2/64")
	addresses(near, "to-next", "172.16.8.1/24", "fd08::1/64")
	addresses(next, "eth0", "172.16.8.2/24", "fd08::2/64")
	addresses(next, "to-last", "172.16.9.1/24", "fd09::1/64")
	addresses(far, "eth0", far4.String()+"/24", far6.String()+"/64")
	for _, router := range []*lab.Namespace{near, next} {
		forwards(router)
	}
	near.Output("ip", "link", "set", "to-next", "mtu", "1280")
	next.Output("ip", "link", "set", "eth0", "mtu", "1280")
	route(n.Node, "172.16.9.0/24", "172.16.7.2", "fd09::/64", "fd07::2")
	route(near, "172.16.9.0/24", "172.16.8.2", "fd09::/64", "fd08::2")
	route(near, "default", "172.16.7.1", "default", "fd07::1")
	route(next, "default", "172.16.8.1", "default", "fd08::1")
	route(far, "default", "172.16.9.1", "default", "fd09::1")
	return far
}

// route adds a route for each family.
func route(ns *lab.Namespace, to4, via4, to6, via6 string) {
	GinkgoHelper()
	ns.Output("ip", "-4", "route", "add", to4, "via", via4)
	ns.Output("ip", "-6", "route", "add", to6, "via", via6)
}
