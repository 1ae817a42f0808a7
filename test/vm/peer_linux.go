//lint:file-ignore ST1001 checks are specs, and read like those in test files

package vm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/ishidawataru/sctp"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/test/lab"
)

// patience is how long a client or server waits for its peer.
const patience = time.Minute

// message is a message of an association.
type message struct {
	stream    uint16
	ppid      uint32
	unordered bool
	data      string
}

// peer is one end of an association as applications have it: a blocking descriptor. It shares no code with usher.
type peer struct {
	fd     int
	status *sctp.Status
}

// newPeer takes over an association from the library, which does not return the flag that marks the end of a message.
func newPeer(c *sctp.SCTPConn) (*peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	p := &peer{}
	if err := raw.Control(func(fd uintptr) { p.fd = int(fd) }); err != nil {
		return nil, err
	}
	if err := c.SubscribeEvents(sctp.SCTP_EVENT_DATA_IO); err != nil {
		return nil, err
	}
	if p.status, err = c.GetStatus(); err != nil {
		return nil, err
	}
	wait := unix.NsecToTimeval(int64(patience))
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, option, &wait); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *peer) send(m message) error {
	info := &sctp.SndRcvInfo{Stream: m.stream, PPID: m.ppid}
	if m.unordered {
		info.Flags = sctp.SCTP_UNORDERED
	}
	for {
		// With a send timeout the kernel does not restart a call that was interrupted by a signal, such as those of
		// Go's scheduler (signal(7)).
		_, err := sctp.NewSCTPConn(p.fd, nil).SCTPWrite([]byte(m.data), info)
		if err != unix.EINTR {
			return os.NewSyscallError("send", err)
		}
	}
}

// receive returns the next message, or io.EOF after a shutdown.
func (p *peer) receive() (message, error) {
	var m message
	buf, control := make([]byte, 16<<10), make([]byte, 256)
	for {
		n, controlLen, flags, _, err := unix.Recvmsg(p.fd, buf, control, 0)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return m, os.NewSyscallError("receive", err)
		case n == 0:
			return m, io.EOF
		}
		m.data += string(buf[:n])
		if flags&unix.MSG_EOR == 0 {
			continue
		}
		list, err := unix.ParseSocketControlMessage(control[:controlLen])
		if err != nil || len(list) != 1 {
			return m, fmt.Errorf("a message without its stream: %v", err)
		}
		m.stream = binary.NativeEndian.Uint16(list[0].Data)
		m.unordered = binary.NativeEndian.Uint16(list[0].Data[4:])&sctp.SCTP_UNORDERED != 0
		m.ppid = binary.BigEndian.Uint32(list[0].Data[8:])
		return m, nil
	}
}

// shutdown ends this side's sending.
func (p *peer) shutdown() error { return unix.Shutdown(p.fd, unix.SHUT_WR) }

func (p *peer) close() { unix.Close(p.fd) }

func (p *peer) abort() {
	_ = unix.SetsockoptLinger(p.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	unix.Close(p.fd)
}

// dial associates from ns with a Service. from may be the zero Addr: then the association has all addresses of ns, like
// an ordinary client's.
func dial(ns *lab.Namespace, from netip.Addr, to netip.AddrPort, streams uint16) (*peer, error) {
	GinkgoHelper()
	var p *peer
	var failed error
	ns.Do(func() error {
		var local *sctp.SCTPAddr
		if from.IsValid() {
			local = address(netip.AddrPortFrom(from, 0))
		}
		config := sctp.SocketConfig{InitMsg: sctp.InitMsg{NumOstreams: streams, MaxInstreams: streams}, Control: limitConnect}
		c, err := config.Dial("sctp", local, address(to))
		for err == syscall.EINTR { // see send
			c, err = config.Dial("sctp", local, address(to))
		}
		if err == nil {
			p, err = newPeer(c)
		}
		if errors.Is(err, syscall.EINVAL) {
			err = syscall.ECONNRESET // it was established, and is already closed
		}
		failed = err
		return nil
	})
	return p, failed
}

// limitConnect limits connect(2) to a minute, which is ample also on a busy emulated CPU: refusals arrive at once, and
// usher accepts at once.
func limitConnect(_, _ string, raw syscall.RawConn) error {
	wait := unix.NsecToTimeval(int64(time.Minute))
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptTimeval(int(fd), unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait)
	})
	return errors.Join(err, failed)
}

func address(a netip.AddrPort) *sctp.SCTPAddr {
	return &sctp.SCTPAddr{IPAddrs: []net.IPAddr{{IP: a.Addr().AsSlice()}}, Port: int(a.Port())}
}

// endpoint is a server in a Pod. It sends its address and then echoes the messages; if it is silent, it sends nothing.
type endpoint struct {
	addr netip.AddrPort

	mu       sync.Mutex
	accepted []*peer
	arrived  chan *peer // for a silent endpoint, which leaves its associations to the test
}

func startEndpoint(ns *lab.Namespace, addr netip.Addr, silent bool) *endpoint {
	GinkgoHelper()
	e := &endpoint{addr: netip.AddrPortFrom(addr, 3868)}
	if silent {
		e.arrived = make(chan *peer, 16)
	}
	var l *sctp.SCTPListener
	ns.Do(func() (err error) {
		l, err = sctp.ListenSCTPExt("sctp", address(e.addr), sctp.InitMsg{NumOstreams: 64, MaxInstreams: 64})
		return err
	})
	DeferCleanup(func() { l.Close() })
	go e.serve(l)
	return e
}

func (e *endpoint) serve(l *sctp.SCTPListener) {
	for {
		c, err := l.AcceptSCTP()
		if err != nil {
			return
		}
		p, err := newPeer(c)
		if err != nil {
			continue
		}
		e.mu.Lock()
		e.accepted = append(e.accepted, p)
		e.mu.Unlock()
		if e.arrived != nil {
			e.arrived <- p
			continue
		}
		go e.echo(p)
	}
}

func (e *endpoint) echo(p *peer) {
	defer p.close()
	if p.send(message{data: e.addr.String()}) != nil {
		return
	}
	for {
		m, err := p.receive()
		if errors.Is(err, unix.EAGAIN) {
			continue // the client sent nothing for longer than patience
		}
		if err != nil || p.send(m) != nil {
			return
		}
	}
}

func (e *endpoint) associations() []*peer {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]*peer(nil), e.accepted...)
}

// ask associates with a Service and returns the association and the endpoint that serves it.
func ask(ns *lab.Namespace, from netip.Addr, to netip.AddrPort) (*peer, netip.AddrPort, error) {
	GinkgoHelper()
	p, err := dial(ns, from, to, 8)
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	m, err := p.receive()
	if err != nil {
		p.close()
		return nil, netip.AddrPort{}, err
	}
	name, err := netip.ParseAddrPort(m.data)
	return p, name, err
}

// associate returns an association with a Service, which must serve it.
func associate(ns *lab.Namespace, from netip.Addr, to netip.AddrPort) *peer {
	GinkgoHelper()
	p, _, err := ask(ns, from, to)
	Expect(err).NotTo(HaveOccurred())
	return p
}

// ended matches the error that either side sees when an association has shut down.
var ended = Or(MatchError(io.EOF), MatchError(syscall.ENOTCONN))

// echoes expects that messages sent by p come back.
func echoes(p *peer) {
	GinkgoHelper()
	m := message{stream: 3, ppid: 46, data: "are you there?"}
	Expect(p.send(m)).To(Succeed())
	Expect(p.receive()).To(Equal(m))
}
