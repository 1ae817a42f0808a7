package forward_test

import (
	"net"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/outcome"
)

// association is a Unix socket that preserves message boundaries. As with SCTP, if one side closes with unread data,
// the other side gets an error.
type association struct{ *net.UnixConn }

func (a association) Receive() (*forward.Message, error) {
	m := &forward.Message{Data: make([]byte, 4<<10)}
	n, err := a.Read(m.Data)
	m.Data = m.Data[:n]
	return m, err
}

func (a association) Release(*forward.Message) {}

func (a association) Send(m *forward.Message) error {
	_, err := a.Write(m.Data)
	return err
}

func (a association) SetLinger(int) error { return nil }

// associate returns the two ends of an association.
func associate() (near, far association) {
	GinkgoHelper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	Expect(err).NotTo(HaveOccurred())
	var ends [2]association
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "association")
		c, err := net.FileConn(f)
		f.Close() // c has a duplicate
		Expect(err).NotTo(HaveOccurred())
		ends[i] = association{c.(*net.UnixConn)}
	}
	return ends[0], ends[1]
}

var _ = Describe("a pair of associations with one side that does not read", func() {
	var client, endpoint association // far ends
	var ended chan outcome.Result
	start := func(limits forward.Limits) {
		var nearClient, nearEndpoint association
		nearClient, client = associate()
		nearEndpoint, endpoint = associate()
		done := make(chan outcome.Result, 1)
		ended = done
		forward.CopyMessages(nearClient, nearEndpoint, limits, forward.Done(func(r outcome.Result) { done <- r }))
		DeferCleanup(func() {
			client.Close()
			endpoint.Close()
		})
	}
	fill := func(a association) {
		GinkgoHelper()
		full := 0
		Eventually(func() int { // twice in a row, as a busy machine may have stopped the pair
			Expect(a.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))).To(Succeed())
			if _, err := a.Write(make([]byte, 1<<10)); err == nil {
				full = 0
			} else {
				Expect(err).To(MatchError(os.ErrDeadlineExceeded))
				full++
			}
			return full
		}).WithTimeout(20 * time.Second).WithPolling(time.Microsecond).Should(Equal(2))
	}
	ends := func(with outcome.Outcome) {
		GinkgoHelper()
		var r outcome.Result
		Eventually(ended).WithTimeout(30 * time.Second).Should(Receive(&r))
		Expect(r.Outcome).To(Equal(with))
	}

	It("ends when the client closes", func() {
		start(forward.Limits{})
		Expect(endpoint.Write([]byte("unread"))).To(Equal(6))
		fill(client)
		client.Close()
		ends(outcome.ClientReset)
	})

	It("ends when the endpoint closes", func() {
		start(forward.Limits{})
		Expect(client.Write([]byte("unread"))).To(Equal(6))
		fill(endpoint)
		endpoint.Close()
		ends(outcome.EndpointReset)
	})

	It("ends when the client's shutdown cannot be delivered within the half-closed timeout", func() {
		start(forward.Limits{HalfClosed: 300 * time.Millisecond})
		fill(client)
		Expect(client.CloseWrite()).To(Succeed())
		ends(outcome.HalfClosed)
	})
})
