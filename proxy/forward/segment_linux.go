package forward

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A run is a sequence of datagrams with the same size and destination; only the last may be shorter. It can be passed
// to the kernel as one message, which passes through routing, netfilter and the device as one. The kernel splits it
// into the datagrams at the very end (UDP_SEGMENT, udp(7)).
const (
	// maxSegment is the size of the largest datagram that can be part of a run. Each datagram must fit in a packet, and
	// every link that carries IPv6 carries this size (1280 bytes without the two headers, RFC 8200).
	maxSegment = 1280 - 40 - 8
	// maxSegments is the maximum number of datagrams of a run. It keeps the message below the maximum size of UDP, and
	// below the kernel's UDP_MAX_SEGMENTS, which was initially 64.
	maxSegments = 32
)

// canSegment reports whether the kernel supports UDP_SEGMENT. A kernel before Linux 4.18 would ignore the control
// message, and send one large datagram.
var canSegment = sync.OnceValue(func() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, maxSegment) == nil
})

// segmenter is the state of a Batch for sending each run of datagrams as one message.
type segmenter struct {
	on       bool // the kernel supports UDP_SEGMENT
	messages []mmsghdr
	lengths  []int // number of datagrams of each message
	controls []byte
}

// segmentSpace is the size of the control messages of a run.
var segmentSpace = controlSpace + unix.CmsgSpace(2)

func newSegmenter(size int) segmenter {
	return segmenter{
		on:       canSegment(),
		messages: make([]mmsghdr, size),
		lengths:  make([]int, size),
		controls: make([]byte, size*segmentSpace),
	}
}

// refusesSegments reports whether errno may mean that the path does not support UDP_SEGMENT, because of a small MTU,
// disabled checksums, or IPsec.
func refusesSegments(errno unix.Errno) bool {
	switch errno {
	case unix.EINVAL, unix.EMSGSIZE, unix.EIO, unix.EOPNOTSUPP:
		return true
	}
	return false
}

// messages makes one message of each run among the datagrams numbered at to end-1.
func (b *Batch) messages(at, end int) []mmsghdr {
	s := &b.segments
	count := 0
	for at < end {
		length := b.run(at, end)
		s.messages[count] = b.headers[at]
		if length > 1 {
			m := &s.messages[count].Msghdr
			m.SetIovlen(length) // its iovecs are contiguous
			s.control(count, m, uint16(b.iovecs[at].Len))
		}
		s.lengths[count] = length
		at += length
		count++
	}
	return s.messages[:count]
}

// run returns the length of the run that begins with the datagram numbered at; end is as in messages.
func (b *Batch) run(at, end int) int {
	first, size := &b.headers[at], b.iovecs[at].Len
	if size == 0 || size > maxSegment {
		return 1
	}
	end = min(end, at+maxSegments)
	for i := at + 1; i < end; i++ {
		h, next := &b.headers[i], b.iovecs[i].Len
		if h.Name != first.Name || h.Control != first.Control || next == 0 || next > size {
			return i - at
		}
		if next < size {
			return i + 1 - at
		}
	}
	return end - at
}

// control adds a control message with the size of the datagrams to m, which is message i.
func (s *segmenter) control(i int, m *unix.Msghdr, size uint16) {
	room := s.controls[i*segmentSpace:][:segmentSpace]
	had := 0
	if m.Control != nil {
		had = copy(room, unsafe.Slice(m.Control, int(m.Controllen)))
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&room[had]))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	*(*uint16)(unsafe.Pointer(&room[had+unix.CmsgLen(0)])) = size
	m.Control = &room[0]
	m.SetControllen(had + unix.CmsgSpace(2))
}

// datagrams returns the number of datagrams in the first n messages.
func (s *segmenter) datagrams(n int) int {
	total := 0
	for _, length := range s.lengths[:n] {
		total += length
	}
	return total
}
