package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
)

// Flows looks up the original destinations of UDP clients in conntrack. UDP has no connection for OriginalDst, so a
// flow is looked up by its reply tuple: from the datagram's local address to its source.
//
// A Flows uses one descriptor and is not safe for concurrent use. It never blocks: the kernel's answer is ready when
// the request has been sent.
type Flows struct {
	socket int
	seq    uint32
	buf    [1024]byte // a conntrack entry has about 300 bytes
}

// OpenFlows returns a Flows, after a test request to conntrack.
func OpenFlows() (*Flows, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("querying conntrack: socket: %w", err)
	}
	f := &Flows{socket: fd}
	nobody := netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	if _, err := f.OriginalDst(portal.UDP, nobody, nobody); err != nil && !errors.Is(err, portal.ErrNotRedirected) {
		f.Close()
		return nil, err
	}
	return f, nil
}

// LoadConntrack makes the kernel load connection tracking and its settings, if it can.
func LoadConntrack() {
	if f, err := OpenFlows(); err == nil {
		f.Close()
	}
}

// Close closes the descriptor.
func (f *Flows) Close() { unix.Close(f.socket) }

// OriginalDst returns the original destination of a client's datagram that arrived at local. The error is
// [portal.ErrNotRedirected] if conntrack does not know the flow. For a flow that is tracked but was not redirected, it
// returns local: the caller compares that with its targets.
func (f *Flows) OriginalDst(protocol portal.Protocol, client, local netip.AddrPort) (netip.AddrPort, error) {
	f.seq++
	request := flowRequest(f.buf[:0], f.seq, protocol, nl.CTA_TUPLE_REPLY, local, client)
	if _, err := unix.Write(f.socket, request); err != nil {
		return netip.AddrPort{}, fmt.Errorf("querying conntrack: %w", os.NewSyscallError("write", err))
	}
	for {
		n, err := unix.Read(f.socket, f.buf[:])
		if err != nil {
			return netip.AddrPort{}, fmt.Errorf("querying conntrack: %w", os.NewSyscallError("read", err))
		}
		dst, seq, err := parseFlow(f.buf[:n], nl.CTA_TUPLE_ORIG)
		if seq != f.seq {
			continue // the answer to an earlier, abandoned request
		}
		switch {
		case errors.Is(err, unix.ENOENT):
			return netip.AddrPort{}, portal.ErrNotRedirected
		case err != nil:
			return netip.AddrPort{}, fmt.Errorf("querying conntrack: %w", err)
		}
		return dst, nil
	}
}

// Attributes of nfnetlink_conntrack.h, with their nesting:
//
//	CTA_TUPLE_REPLY or CTA_TUPLE_ORIG
//	    CTA_TUPLE_IP      CTA_IP_V4_SRC, CTA_IP_V4_DST, or those of IPv6
//	    CTA_TUPLE_PROTO   CTA_PROTO_NUM, CTA_PROTO_SRC_PORT, CTA_PROTO_DST_PORT
const (
	nfgenmsgSize    = 4 // family, version, two bytes of resource id
	attributeSize   = 4 // length, type
	typeMask        = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
	getConntrack    = unix.NFNL_SUBSYS_CTNETLINK<<8 | nl.IPCTNL_MSG_CT_GET
	deleteConntrack = unix.NFNL_SUBSYS_CTNETLINK<<8 | nl.IPCTNL_MSG_CT_DELETE
)

// flowRequest appends to b a request for the flow with the tuple src, dst in one direction: CTA_TUPLE_ORIG or
// CTA_TUPLE_REPLY.
func flowRequest(b []byte, seq uint32, protocol portal.Protocol, one uint16, src, dst netip.AddrPort) []byte {
	family, srcType, dstType := byte(unix.AF_INET), uint16(nl.CTA_IP_V4_SRC), uint16(nl.CTA_IP_V4_DST)
	if src.Addr().Is6() {
		family, srcType, dstType = unix.AF_INET6, nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST
	}
	start := len(b)
	b = append(b, make([]byte, unix.SizeofNlMsghdr)...)
	b = append(b, family, unix.NFNETLINK_V0, 0, 0)
	b = nested(b, one, func(b []byte) []byte {
		b = nested(b, nl.CTA_TUPLE_IP, func(b []byte) []byte {
			b = attribute(b, srcType, src.Addr().AsSlice()...)
			return attribute(b, dstType, dst.Addr().AsSlice()...)
		})
		return nested(b, nl.CTA_TUPLE_PROTO, func(b []byte) []byte {
			b = attribute(b, nl.CTA_PROTO_NUM, byte(protocol))
			b = attribute(b, nl.CTA_PROTO_SRC_PORT, byte(src.Port()>>8), byte(src.Port()))
			return attribute(b, nl.CTA_PROTO_DST_PORT, byte(dst.Port()>>8), byte(dst.Port()))
		})
	})
	h := b[start:]
	binary.NativeEndian.PutUint32(h[0:], uint32(len(h)))
	binary.NativeEndian.PutUint16(h[4:], getConntrack)
	binary.NativeEndian.PutUint16(h[6:], unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(h[8:], seq)
	return b
}

// attribute appends a netlink attribute, padded to four bytes.
func attribute(b []byte, kind uint16, data ...byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attributeSize+len(data)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, data...)
	return append(b, make([]byte, -len(data)&3)...)
}

// nested appends an attribute that contains others.
func nested(b []byte, kind uint16, inside func([]byte) []byte) []byte {
	start := len(b)
	b = attribute(b, kind|unix.NLA_F_NESTED)
	b = inside(b)
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

// errShort says that a message of the kernel is truncated, or lacks the tuple.
var errShort = errors.New("the kernel's reply is not a conntrack entry")

// parseFlow parses the kernel's answer. It returns the destination in a direction, and the sequence number of the
// answered request. The error may be a unix.Errno.
func parseFlow(b []byte, direction uint16) (dst netip.AddrPort, seq uint32, err error) {
	if len(b) < unix.SizeofNlMsghdr {
		return dst, 0, errShort
	}
	length, kind := binary.NativeEndian.Uint32(b), binary.NativeEndian.Uint16(b[4:])
	seq = binary.NativeEndian.Uint32(b[8:])
	if uint64(length) > uint64(len(b)) || length < unix.SizeofNlMsghdr+nfgenmsgSize {
		return dst, seq, errShort
	}
	b = b[unix.SizeofNlMsghdr:length]
	if kind == unix.NLMSG_ERROR {
		errno := -int32(binary.NativeEndian.Uint32(b))
		if errno <= 0 {
			return dst, seq, errShort
		}
		return dst, seq, unix.Errno(errno)
	}
	if dst = destination(find(b[nfgenmsgSize:], direction)); !dst.IsValid() {
		return dst, seq, errShort
	}
	return dst, seq, nil
}

// source and destination return the ends of a tuple; the zero AddrPort if the tuple lacks them.
func source(tuple []byte) netip.AddrPort {
	return end(tuple, nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC, nl.CTA_PROTO_SRC_PORT)
}

func destination(tuple []byte) netip.AddrPort {
	return end(tuple, nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST, nl.CTA_PROTO_DST_PORT)
}

func end(tuple []byte, v4, v6, port uint16) netip.AddrPort {
	ip, number := find(tuple, nl.CTA_TUPLE_IP), find(find(tuple, nl.CTA_TUPLE_PROTO), port)
	addr := find(ip, v4)
	if addr == nil {
		addr = find(ip, v6)
	}
	a, ok := netip.AddrFromSlice(addr)
	if !ok || len(number) < 2 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(number))
}

// find returns the data of the first attribute of a kind; nil if there is none.
func find(b []byte, kind uint16) []byte {
	for len(b) >= attributeSize {
		length := int(binary.NativeEndian.Uint16(b))
		if length < attributeSize || length > len(b) {
			return nil
		}
		if binary.NativeEndian.Uint16(b[2:])&typeMask == kind {
			return b[attributeSize:length]
		}
		b = b[min((length+3)&^3, len(b)):]
	}
	return nil
}
