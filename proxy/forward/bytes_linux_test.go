package forward_test

import (
	"errors"
	"io"
	"net"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("data with and without urgent bytes", func() {
	It("arrives through a direct connection", func() {
		lab.CompareBytes(time.Second, true, func() (client, endpoint *net.TCPConn) { return tcpPair() }, func(lab.Ending) {})
	})
	for _, m := range append(systemMovers(), copyMover) {
		It("arrives through "+m.name, func() {
			var p *pair
			lab.CompareBytes(time.Second, true, func() (client, endpoint *net.TCPConn) {
				p = begin(m, forward.Limits{})
				return p.client, p.endpoint
			}, func(how lab.Ending) {
				switch r := p.result(); {
				case how.ClientReset:
					Expect(r.Outcome).To(BeElementOf(outcome.ClientReset, outcome.NoResponse))
				case how.EndpointReset:
					Expect(r.Outcome).To(BeElementOf(outcome.EndpointReset, outcome.ClientClosed))
				default:
					Expect(r.Outcome).To(BeElementOf(outcome.EndpointClosed, outcome.ClientClosed))
				}
			})
		})
	}
})

var _ = Describe("an urgent byte", func() {
	for _, m := range systemMovers() {
		for _, size := range []int{3, 1 << 20} { // with pipes, one exists by then
			It("keeps its position through "+m.name, func() {
				p := begin(m, forward.Limits{})
				for _, way := range [][2]*net.TCPConn{{p.client, p.endpoint}, {p.endpoint, p.client}} {
					from, to := way[0], way[1]
					go func() {
						defer GinkgoRecover()
						_, err := from.Write(make([]byte, size))
						Expect(err).NotTo(HaveOccurred())
						Expect(sendUrgent(from, 'X')).To(Succeed())
						_, err = from.Write([]byte("rest"))
						Expect(err).NotTo(HaveOccurred())
					}()
					p.read(to, size)
					Eventually(func() (byte, error) { return receiveUrgent(to) }).WithTimeout(30 * time.Second).Should(BeEquivalentTo('X'))
					Expect(readAfterUrgent(to, 4)).To(Equal("rest"))
				}
				Expect(p.client.CloseWrite()).To(Succeed())
				Expect(io.ReadAll(p.endpoint)).To(BeEmpty())
				Expect(p.endpoint.Close()).To(Succeed())
				Expect(io.ReadAll(p.client)).To(BeEmpty())
				Expect(p.result()).To(Equal(outcome.Result{Outcome: outcome.ClientClosed, ToEndpoint: int64(size) + 5, ToClient: int64(size) + 5}))
			})
		}
	}
})

// sendUrgent sends b once the send buffer has space.
func sendUrgent(c *net.TCPConn, b byte) error {
	raw, err := c.SyscallConn()
	Expect(err).NotTo(HaveOccurred())
	failed := raw.Write(func(fd uintptr) bool {
		err = unix.Send(int(fd), []byte{b}, unix.MSG_OOB|unix.MSG_DONTWAIT)
		return err != unix.EAGAIN
	})
	return errors.Join(failed, err)
}

// readAfterUrgent reads n bytes. Each read has a deadline: at an urgent byte that was received already, a pending
// signal makes the kernel return EAGAIN. net.TCPConn.Read would then wait, although data has arrived.
func readAfterUrgent(c *net.TCPConn, n int) string {
	GinkgoHelper()
	buf, got := make([]byte, n), 0
	Eventually(func() int {
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		more, _ := c.Read(buf[got:])
		got += more
		return got
	}).WithTimeout(5 * time.Second).Should(Equal(n))
	Expect(c.SetReadDeadline(time.Time{})).To(Succeed())
	return string(buf)
}

// receiveUrgent returns the urgent byte at c's current position.
func receiveUrgent(c *net.TCPConn) (byte, error) {
	var b [1]byte
	err := onSocket(c, func(fd int) error {
		if at, err := unix.IoctlGetInt(fd, unix.SIOCATMARK); at == 0 {
			return err
		}
		_, _, err := unix.Recvfrom(fd, b[:], unix.MSG_OOB)
		return err
	})
	return b[0], err
}

func onSocket(c *net.TCPConn, f func(fd int) error) (err error) {
	raw, failed := c.SyscallConn()
	Expect(failed).NotTo(HaveOccurred())
	Expect(raw.Control(func(fd uintptr) { err = f(int(fd)) })).To(Succeed())
	return err
}

var _ = Describe("data that a client does not read", func() {
	It("is buffered by a pair unless the limit of all pairs is reached", func() {
		before := forward.Kept()
		loop := newLoop(0)
		fill := func() *pair {
			p := begin(mover{"a loop", func(limits forward.Limits, owner forward.Owner) (*net.TCPConn, *net.TCPConn, forward.Flow) {
				return loopPair(loop, limits, owner)
			}}, forward.Limits{})
			p.fill(p.endpoint)
			return p
		}
		first := fill()
		some := forward.Kept()
		Expect(some).To(BeNumerically(">", before))
		again := forward.KeepNothing()
		enough := forward.Kept()
		second := fill()
		Expect(forward.Kept()).To(Equal(enough))
		again()
		first.reset(first.client)
		first.result()
		Expect(forward.Kept()).To(Equal(before), "the buffered bytes of a pair are released with it")
		second.reset(second.client)
		second.result()
	})
})
