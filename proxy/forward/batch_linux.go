package forward

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxDatagram exceeds the largest datagram that UDP carries over IPv4 (65,507 bytes) or IPv6 without jumbograms
// (65,527).
const MaxDatagram = 1 << 16

// Batch holds several datagrams of any size, which one system call receives or sends (recvmmsg(2), sendmmsg(2)). Its
// memory is reused; pages that no datagram has ever filled cost nothing.
//
// For a single datagram, a Batch uses recvmsg(2), recvfrom(2), sendmsg(2) or sendto(2). They are cheaper: the kernel
// copies less, and does not look for a second datagram.
//
// The datagrams of a Batch are numbered from 0. Only one goroutine may use a Batch.
type Batch struct {
	headers  []mmsghdr
	iovecs   []unix.Iovec
	peers    []Peer
	controls []byte
	data     []byte
	segments segmenter
}

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	unix.Msghdr
	received uint32
}

// NewBatch returns a Batch for size datagrams.
func NewBatch(size int) *Batch {
	return &Batch{
		headers:  make([]mmsghdr, size),
		iovecs:   make([]unix.Iovec, size),
		peers:    make([]Peer, size),
		controls: make([]byte, size*controlSpace),
		data:     make([]byte, size*stride),
		segments: newSegmenter(size),
	}
}

// stride is the distance between two datagrams in memory, in bytes. It includes margin. Since it is no power of two,
// the first bytes of all datagrams do not compete for the same cache lines.
const stride = MaxDatagram + 192

// margin is the free space before each datagram, for Prepend. It keeps the datagrams aligned.
const margin = 64

// Receive receives up to max datagrams, numbered at, at+1 and so on, with their senders and control messages. It
// returns how many it received.
func (b *Batch) Receive(fd, at, max int) (int, error) {
	for i := at; i < at+max; i++ {
		h := b.room(i)
		h.Name, h.Namelen = &b.peers[i].raw[0], unix.SizeofSockaddrInet6
		h.Control = &b.controls[i*controlSpace]
		h.SetControllen(controlSpace)
	}
	n, err := b.receive(fd, at, max)
	for i := at; i < at+n; i++ {
		p := &b.peers[i]
		p.length = min(b.headers[i].Namelen, unix.SizeofSockaddrInet6)
		clear(p.raw[p.length:]) // bytes of a previous datagram
	}
	return n, err
}

// ReceiveConnected is Receive for a connected socket, without senders and control messages.
func (b *Batch) ReceiveConnected(fd, at, max int) (int, error) {
	if max == 1 {
		b.room(at)
		v := &b.iovecs[at]
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(v.Base)), MaxDatagram, unix.MSG_DONTWAIT, 0, 0)
		if errno != 0 {
			return 0, errno
		}
		v.SetLen(int(n))
		return 1, nil
	}
	for i := at; i < at+max; i++ {
		b.room(i)
		b.Unaddress(i)
	}
	return b.receive(fd, at, max)
}

// room prepares datagram i for receiving, with a buffer of MaxDatagram bytes.
func (b *Batch) room(i int) *mmsghdr {
	h, v := &b.headers[i], &b.iovecs[i]
	v.Base = &b.data[i*stride+margin]
	v.SetLen(MaxDatagram)
	h.Iov = v
	h.SetIovlen(1)
	return h
}

func (b *Batch) receive(fd, at, max int) (int, error) {
	if max == 1 {
		n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.headers[at].Msghdr)), unix.MSG_DONTWAIT)
		if errno != 0 {
			return 0, errno
		}
		b.iovecs[at].SetLen(int(n))
		return 1, nil
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.headers[at])), uintptr(max), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	for i := at; i < at+int(n); i++ {
		b.iovecs[i].SetLen(int(b.headers[i].received))
	}
	return int(n), nil
}

// Data returns the bytes of datagram i. They are valid until another datagram is received as number i.
func (b *Batch) Data(i int) []byte { return unsafe.Slice(b.iovecs[i].Base, b.iovecs[i].Len) }

// Prepend puts header, of at most 64 bytes, before datagram i.
func (b *Batch) Prepend(i int, header []byte) {
	v := &b.iovecs[i]
	v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.Base), -len(header)))
	v.SetLen(int(v.Len) + len(header))
	copy(b.Data(i), header)
}

// Strip removes the first n bytes of datagram i.
func (b *Batch) Strip(i, n int) {
	v := &b.iovecs[i]
	v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.Base), n))
	v.SetLen(int(v.Len) - n)
}

// Peer returns the sender of datagram i.
func (b *Batch) Peer(i int) *Peer { return &b.peers[i] }

// Control returns the control messages of datagram i.
func (b *Batch) Control(i int) Control {
	length := int(b.headers[i].Controllen)
	return ParseControl(b.controls[i*controlSpace:][:min(length, controlSpace)])
}

// Address sets the destination and the control messages of datagram i. Neither may change until the datagram is sent.
func (b *Batch) Address(i int, peer *Peer, control []byte) {
	h := &b.headers[i]
	h.Name, h.Namelen = &peer.raw[0], peer.length
	h.Control = nil
	if len(control) > 0 {
		h.Control = &control[0]
	}
	h.SetControllen(len(control))
}

// Unaddress removes the destination and the control messages of datagram i, for a connected socket.
func (b *Batch) Unaddress(i int) {
	h := &b.headers[i]
	h.Name, h.Namelen, h.Control = nil, 0, nil
	h.SetControllen(0)
}

// Send sends the datagrams numbered at to at+count-1. It returns how many it sent before the first failure, and the
// error of that failure. Adjacent datagrams that form a run (see segment_linux.go) pass through the kernel as one
// message. A run needs the same peer and control pointers in its Address calls, or none (see Unaddress).
func (b *Batch) Send(fd, at, count int) (sent int, err error) {
	if count == 1 {
		return b.sendOne(fd, at)
	}
	together := b.segments.on
	for sent < count {
		messages := b.headers[at+sent : at+count]
		if together {
			messages = b.messages(at+sent, at+count)
		}
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&messages[0])), uintptr(len(messages)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		switch {
		case errno == 0 && together:
			sent += b.segments.datagrams(int(n))
		case errno == 0:
			sent += int(n)
		case together && b.segments.datagrams(1) > 1 && refusesSegments(errno):
			together = false
		default:
			return sent, errno
		}
	}
	return sent, nil
}

// sendOne is Send for one datagram.
func (b *Batch) sendOne(fd, i int) (int, error) {
	const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	h, v := &b.headers[i], &b.iovecs[i]
	var errno unix.Errno
	if h.Control == nil {
		_, _, errno = unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(v.Base)), uintptr(v.Len), flags, uintptr(unsafe.Pointer(h.Name)), uintptr(h.Namelen))
	} else {
		_, _, errno = unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&h.Msghdr)), flags)
	}
	if errno != 0 {
		return 0, errno
	}
	return 1, nil
}
