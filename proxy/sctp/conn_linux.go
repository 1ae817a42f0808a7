//go:build !386

package sctp

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"github.com/ishidawataru/sctp"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/proxy/forward"
)

// Conn is an association. One goroutine may receive while another sends; the other methods may be called from any
// goroutine.
type Conn struct {
	*socket
	local, remote netip.AddrPort
	streams       Streams
	receiving     receiving
	sending       sending
}

// newConn takes over the socket of an established association.
func newConn(s *socket, remote netip.AddrPort) (*Conn, error) {
	c := &Conn{socket: s, remote: remote}
	c.receiving.ready = c.receiving.step
	c.sending.ready = c.sending.step
	var err error
	if c.local, err = s.localAddr(); err == nil {
		err = s.control(func(fd int) error {
			status, err := sctp.NewSCTPConn(fd, nil).GetStatus()
			c.streams = Streams{In: status.Instreams, Out: status.Ostreams}
			return os.NewSyscallError("getsockopt SCTP_STATUS", err)
		})
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return c, nil
}

// LocalAddr returns this side's address.
func (c *Conn) LocalAddr() netip.AddrPort { return c.local }

// RemoteAddr returns the peer's address with which the association began.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.remote }

// Streams returns the number of streams that the two sides agreed on.
func (c *Conn) Streams() Streams { return c.streams }

// CloseWrite makes the kernel begin SHUTDOWN once all sent messages are delivered. Messages that the peer sent before
// can still be received.
func (c *Conn) CloseWrite() error {
	return c.control(func(fd int) error { return os.NewSyscallError("shutdown", unix.Shutdown(fd, unix.SHUT_WR)) })
}

// Receive implements [forward.MessageConn].
func (c *Conn) Receive() (*forward.Message, error) {
	r := &c.receiving
	r.err = nil
	err := c.raw.Read(r.ready)
	m := r.message
	if err == nil {
		err = r.err
	}
	switch {
	case c.closed.Load():
		err = net.ErrClosed
	case err == nil:
		r.message = nil
		return m, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, err // a partial message stays for the next call
	}
	if m != nil {
		r.message = nil
		c.Release(m)
	}
	return nil, err
}

// Release implements [forward.MessageConn].
func (c *Conn) Release(m *forward.Message) { release(m) }

// bufferSize is the initial capacity for a message, in bytes; few messages are larger. It also holds any notification.
const bufferSize = 64 << 10

// roomForNotification is the minimum free capacity for each read, in bytes, since a read may return a notification.
const roomForNotification = 1 << 10

var messages = sync.Pool{New: func() any { return &forward.Message{Data: make([]byte, 0, bufferSize)} }}

func release(m *forward.Message) {
	if cap(m.Data) == bufferSize {
		messages.Put(m)
		return
	}
	large.Add(-int64(cap(m.Data)))
}

// large is the total capacity of all messages of this process that are larger than bufferSize. A message that would
// make it exceed maxLarge ends its association: each client could begin a message of MaxMessage bytes and never end it.
var large atomic.Int64

const maxLarge = 64 << 20

// grow doubles the capacity of a message.
func grow(m *forward.Message) error {
	more := int64(2 * cap(m.Data))
	switch {
	case len(m.Data) > MaxMessage:
		return errTooLarge
	case large.Add(more) > maxLarge:
		large.Add(-more)
		return errTooManyLarge
	}
	data := append(make([]byte, 0, more), m.Data...)
	if cap(m.Data) > bufferSize {
		large.Add(-int64(cap(m.Data)))
	}
	m.Data = data
	return nil
}

// receiving is the state of Receive. It holds no buffer while no data arrives.
type receiving struct {
	ready   func(fd uintptr) bool // step
	message *forward.Message      // the part received so far
	err     error
	control [128]byte
}

// step reads until a message is complete or the association has ended or failed; then it returns true. It returns false
// if no more data is available.
func (r *receiving) step(fd uintptr) bool {
	for {
		if r.message == nil {
			r.message = messages.Get().(*forward.Message)
			r.message.Data = r.message.Data[:0]
		}
		m := r.message
		if cap(m.Data)-len(m.Data) < roomForNotification {
			if r.err = grow(m); r.err != nil {
				return true
			}
		}
		read := m.Data[len(m.Data):cap(m.Data)]
		n, controlLen, flags, _, err := unix.Recvmsg(int(fd), read, r.control[:], 0)
		switch {
		case err == unix.EAGAIN:
			if len(m.Data) == 0 {
				r.message = nil
				release(m)
			}
			return false
		case err == unix.EINTR, err == unix.ESHUTDOWN:
			// The kernel reports ESHUTDOWN if a send came after the peer's SHUTDOWN. Unread data remains readable.
			continue
		case err != nil:
			r.err = os.NewSyscallError("recvmsg", err)
			return true
		case flags&sctp.MSG_NOTIFICATION != 0:
			if r.err = notified(int(fd), read[:n], m); r.err != nil {
				return true
			}
			continue
		case n == 0:
			r.err = io.EOF
			return true
		}
		m.Data = m.Data[:len(m.Data)+n]
		if flags&unix.MSG_EOR == 0 {
			continue // the message continues
		}
		if len(m.Data) > MaxMessage {
			r.err = errTooLarge
			return true
		}
		if !describe(m, r.control[:controlLen]) {
			r.err = errors.New("the kernel did not report the message's stream")
		}
		return true
	}
}

// notified returns the meaning of a notification (RFC 6458 section 6.1): io.EOF if the association ended regularly, nil
// if it continues. It returns another error if the association was lost or restarted. If the sender has abandoned a
// message, notified empties partial.
func notified(fd int, notification []byte, partial *forward.Message) error {
	const header = 8 // type, flags, length
	if len(notification) < header+2 {
		return nil
	}
	switch sctp.SCTPNotificationType(binary.NativeEndian.Uint16(notification)) {
	case sctp.SCTP_PARTIAL_DELIVERY_EVENT:
		// The sender has abandoned the message of which a part has arrived.
		partial.Data = partial.Data[:0]
	case sctp.SCTP_ASSOC_CHANGE:
		switch sctp.SCTPState(binary.NativeEndian.Uint16(notification[header:])) {
		case sctp.SCTP_SHUTDOWN_COMP:
			return io.EOF
		case sctp.SCTP_COMM_LOST:
			if errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && errno != 0 {
				return unix.Errno(errno)
			}
			return unix.ECONNRESET
		case sctp.SCTP_RESTART:
			// The peer has lost its state and restarted (RFC 9260 section 5.2): further data belongs to another
			// conversation.
			return unix.ECONNRESET
		}
	}
	return nil
}

// describe sets the fields that the kernel reports about a message apart from its bytes, or returns false if it reports
// none.
func describe(m *forward.Message, control []byte) bool {
	list, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return false
	}
	for _, c := range list {
		// struct sctp_sndrcvinfo: stream, ssn, flags, padding, ppid.
		if c.Header.Level == unix.IPPROTO_SCTP && c.Header.Type == sctp.SCTP_CMSG_SNDRCV && len(c.Data) >= 12 {
			m.Stream = binary.NativeEndian.Uint16(c.Data)
			m.Unordered = binary.NativeEndian.Uint16(c.Data[4:])&sctp.SCTP_UNORDERED != 0
			m.PPID = binary.BigEndian.Uint32(c.Data[8:])
			return true
		}
	}
	return false
}

// sending is the state of Send.
type sending struct {
	ready   func(fd uintptr) bool // step
	message *forward.Message
	err     error
}

// Send implements [forward.MessageConn].
func (c *Conn) Send(m *forward.Message) error {
	s := &c.sending
	s.message, s.err = m, nil
	err := c.raw.Write(s.ready)
	s.message = nil
	switch {
	case c.closed.Load():
		return net.ErrClosed
	case err != nil:
		return err
	}
	return s.err
}

func (s *sending) step(fd uintptr) bool {
	info := sctp.SndRcvInfo{Stream: s.message.Stream, PPID: s.message.PPID}
	if s.message.Unordered {
		info.Flags = sctp.SCTP_UNORDERED
	}
	for {
		_, err := sctp.NewSCTPConn(int(fd), nil).SCTPWrite(s.message.Data, &info)
		switch err {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		case unix.EMSGSIZE:
			if makeRoom(int(fd), len(s.message.Data)) {
				continue
			}
		case unix.EPIPE, unix.ESHUTDOWN, unix.ENOTCONN:
			err = unix.EPIPE
		}
		s.err = os.NewSyscallError("sendmsg", err)
		return true
	}
}

// makeRoom enlarges a send buffer that cannot hold a message of size bytes, and reports whether it now can. Beyond
// net.core.wmem_max that requires CAP_NET_ADMIN.
func makeRoom(fd, size int) bool {
	had, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil || had >= size {
		return false
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size) // as much as is allowed
	}
	has, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	return err == nil && has >= size
}
