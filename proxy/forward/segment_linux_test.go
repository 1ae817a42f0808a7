package forward

import (
	"bytes"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// through sends datagrams of these sizes from one socket to another in one batch, and returns the sizes of the
// received datagrams.
func through(t *testing.T, segments bool, sizes ...int) []int {
	t.Helper()
	g := NewWithT(t)
	server, client, at := loopback(t, "0.0.0.0:0")
	g.Expect(unix.Send(client, nil, 0)).To(Succeed())
	in, out := NewBatch(1), NewBatch(len(sizes))
	g.Expect(in.Receive(server, 0, 1)).To(Equal(1))
	out.segments.on = out.segments.on && segments
	control := SourceControl(at.Addr(), 0)
	for i, size := range sizes {
		out.room(i)
		copy(out.Data(i), bytes.Repeat([]byte{byte(i)}, size))
		out.iovecs[i].SetLen(size)
		out.Address(i, in.Peer(0), control)
	}
	g.Expect(out.Send(server, 0, len(sizes))).To(Equal(len(sizes)))
	var came []int
	for i := range sizes {
		g.Expect(in.ReceiveConnected(client, 0, 1)).To(Equal(1), "datagram %d", i)
		data := in.Data(0)
		g.Expect(bytes.Count(data, []byte{byte(i)})).To(Equal(len(data)), "datagram %d has its original bytes", i)
		came = append(came, len(data))
	}
	_, err := in.ReceiveConnected(client, 0, 1)
	g.Expect(err).To(Equal(unix.EAGAIN))
	return came
}

func TestDatagramsSentInABatchStaySeparate(t *testing.T) {
	g := NewWithT(t)
	many := make([]int, 80)
	for i := range many {
		many[i] = 64
	}
	for _, sizes := range [][]int{
		{64, 64, 64, 64},
		{64, 64, 10, 64, 64},
		{10, 64, 64, 0, 64, 0, 0, 1, 1},
		{1232, 1232, 1232, 1},
		{1233, 1233, 65507, 512, 512},
		many,
	} {
		g.Expect(through(t, true, sizes...)).To(Equal(sizes))
		g.Expect(through(t, false, sizes...)).To(Equal(sizes), "without segments")
	}
}

func TestContentsOfASegmentedMessage(t *testing.T) {
	g := NewWithT(t)
	if !canSegment() {
		t.Skip("the kernel does not support UDP_SEGMENT")
	}
	b := NewBatch(40)
	lengths := func(sizes ...int) []int {
		for i, size := range sizes {
			b.room(i)
			b.Unaddress(i)
			b.iovecs[i].SetLen(size)
		}
		return b.segments.lengths[:len(b.messages(0, len(sizes)))]
	}
	g.Expect(lengths(64, 64, 64)).To(Equal([]int{3}))
	g.Expect(lengths(64, 64, 10, 64)).To(Equal([]int{3, 1}), "the last segment may be shorter")
	g.Expect(lengths(10, 64, 64)).To(Equal([]int{1, 2}), "a later segment may not be longer")
	g.Expect(lengths(0, 0, 64, 0)).To(Equal([]int{1, 1, 1, 1}), "an empty datagram cannot be a segment")
	g.Expect(lengths(1233, 1233)).To(Equal([]int{1, 1}), "each segment must fit in a packet")
	thirtyThree := make([]int, 33)
	for i := range thirtyThree {
		thirtyThree[i] = 1
	}
	g.Expect(lengths(thirtyThree...)).To(Equal([]int{32, 1}))
}

func TestDatagramsAreSentSeparatelyIfSegmentsAreRefused(t *testing.T) {
	g := NewWithT(t)
	server, client, _ := loopback(t, "0.0.0.0:0")
	// Without checksums the kernel refuses segments.
	g.Expect(unix.SetsockoptInt(client, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1)).To(Succeed())
	out, in := NewBatch(3), NewBatch(8)
	for i := range 3 {
		out.room(i)
		out.Unaddress(i)
		out.iovecs[i].SetLen(64)
	}
	g.Expect(out.Send(client, 0, 3)).To(Equal(3))
	g.Expect(in.Receive(server, 0, 8)).To(Equal(3))
}

func TestSendingDatagramsDoesNotAllocate(t *testing.T) {
	server, client, _ := loopback(t, "0.0.0.0:0")
	in, out := NewBatch(8), NewBatch(8)
	payload := make([]byte, 64)
	if n := testing.AllocsPerRun(100, func() {
		for range 4 {
			_ = unix.Send(client, payload, 0)
		}
		n, _ := in.Receive(server, 0, 8)
		control := in.Control(0)
		if control.Local != netip.AddrFrom4([4]byte{127, 0, 0, 1}) {
			t.Error(control.Local)
		}
		for i := range n {
			in.Address(i, in.Peer(0), nil)
		}
		if sent, err := in.Send(server, 0, n); sent != 4 {
			t.Error(sent, err)
		}
		if n, err := out.ReceiveConnected(client, 0, 8); n != 4 {
			t.Error(n, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
