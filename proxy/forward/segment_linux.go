package forward

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Datagrams of one size that go the same way one after the other can be given
// to the kernel as one message, which passes through routing, netfilter and the
// device as one and is cut into the datagrams that it was at the very end
// (UDP_SEGMENT, udp(7)). The last one may be shorter.
const (
	// maxSegment is the largest datagram for which that is tried: each must fit
	// in a packet, and every link that carries IPv6 carries this much (1280
	// bytes without the two headers, RFC 8200).
	maxSegment = 1280 - 40 - 8
	// maxSegments keeps a message below what UDP carries, and below the kernel's
	// UDP_MAX_SEGMENTS, which was 64 at first.
	maxSegments = 32
)

// canSegment reports whether the kernel knows UDP_SEGMENT. One that does not,
// before Linux 4.18, would take no notice and send one large datagram.
var canSegment = sync.OnceValue(func() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, maxSegment) == nil
})

// segmenter is what a Batch needs to send runs of datagrams as one message each.
type segmenter struct {
	on       bool // the kernel can
	messages []mmsghdr
	lengths  []int // of the runs, in datagrams
	controls []byte
}

// segmentSpace is room for the control messages of a run.
var segmentSpace = controlSpace + unix.CmsgSpace(2)

func newSegmenter(size int) segmenter {
	return segmenter{
		on:       canSegment(),
		messages: make([]mmsghdr, size),
		lengths:  make([]int, size),
		controls: make([]byte, size*segmentSpace),
	}
}

// refusesSegments reports whether errno may come from asking for segments where
// the way there does not allow them: a small MTU, no checksums, IPsec.
func refusesSegments(errno unix.Errno) bool {
	switch errno {
	case unix.EINVAL, unix.EMSGSIZE, unix.EIO, unix.EOPNOTSUPP:
		return true
	}
	return false
}

// messages makes messages of the datagrams from number at to end, one of each
// run.
func (b *Batch) messages(at, end int) []mmsghdr {
	s := &b.segments
	count := 0
	for at < end {
		length := b.run(at, end)
		s.messages[count] = b.headers[at]
		if length > 1 {
			m := &s.messages[count].Msghdr
			m.SetIovlen(length) // its iovecs lie behind each other
			s.control(count, m, uint16(b.iovecs[at].Len))
		}
		s.lengths[count] = length
		at += length
		count++
	}
	return s.messages[:count]
}

// run returns how many datagrams from number at on can be one message.
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

// control gives message m, number i, a control message that says how long each
// datagram in it is, beside those that it has.
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

// datagrams returns how many datagrams the first n messages hold.
func (s *segmenter) datagrams(n int) int {
	total := 0
	for _, length := range s.lengths[:n] {
		total += length
	}
	return total
}
