package fdpass

import (
	"cmp"
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrTruncated says that a message exceeded the receiver's buffer, its limit of descriptors, or its limit of open files
// (recvmsg(2)). The excess is lost.
var ErrTruncated = errors.New("message or its descriptors were truncated")

// underWayTime limits how long Send waits while too many descriptors are in flight.
const underWayTime = 5 * time.Second

// Send sends data with copies of descriptors; the sender's stay open. The kernel limits the descriptors in messages
// that no process has received yet. For a user without CAP_SYS_RESOURCE the limit is RLIMIT_NOFILE (ETOOMANYREFS,
// unix(7)). Descriptors that the user's other processes have sent count too: Send waits up to underWayTime until they
// are received.
func Send(c *net.UnixConn, data []byte, fds ...int) error {
	for deadline := time.Now().Add(underWayTime); ; time.Sleep(10 * time.Millisecond) {
		if err := send(c, data, fds); !errors.Is(err, unix.ETOOMANYREFS) || time.Now().After(deadline) {
			return err
		}
	}
}

func send(c *net.UnixConn, data []byte, fds []int) error {
	raw, err := c.SyscallConn() // package net cannot send on a connected datagram socket
	if err != nil {
		return err
	}
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		failed = SendOn(int(fd), data, fds...)
		return !errors.Is(failed, unix.EAGAIN)
	})
	return cmp.Or(err, failed)
}

// SendNow is Send without waiting: it returns EAGAIN while the receiver's queue is full.
func SendNow(c *net.UnixConn, data []byte, fds ...int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = SendOn(int(fd), data, fds...) })
	return cmp.Or(err, failed)
}

// SendOn is SendNow on the socket with descriptor fd.
func SendOn(fd int, data []byte, fds ...int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	for {
		err := unix.Sendmsg(fd, data, rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if err != unix.EINTR {
			return os.NewSyscallError("sendmsg", err)
		}
	}
}

// Receive reads the data of one Send into buf, and returns up to maxFDs descriptors, even with ErrTruncated. They are
// closed on exec, and the caller closes them.
func Receive(c *net.UnixConn, buf []byte, maxFDs int) (n int, fds []int, err error) {
	oob := make([]byte, unix.CmsgSpace(maxFDs*4))
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		return 0, nil, err
	}
	fds, err = rights(oob[:oobn], flags)
	return n, fds, err
}

// ReceiveOn is Receive on the socket with descriptor fd, without waiting: it returns EAGAIN if no message has arrived.
func ReceiveOn(fd int, buf []byte, maxFDs int) (n int, fds []int, err error) {
	oob := make([]byte, unix.CmsgSpace(maxFDs*4))
	for {
		n, oobn, flags, _, err := unix.Recvmsg(fd, buf, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, nil, os.NewSyscallError("recvmsg", err)
		}
		fds, err = rights(oob[:oobn], flags)
		return n, fds, err
	}
}

// rights returns the descriptors in the control messages of a received message.
func rights(oob []byte, flags int) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		if more, err := unix.ParseUnixRights(&messages[i]); err == nil { // another kind of control message is skipped
			fds = append(fds, more...)
		}
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = ErrTruncated
	}
	return fds, err
}

// Descriptor returns f's descriptor. Unlike f.Fd, it never sets the open file, which other processes share, to blocking
// mode.
func Descriptor(f *os.File) (fd int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	err = raw.Control(func(d uintptr) { fd = int(d) })
	return fd, err
}

// Close closes received descriptors.
func Close(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// Conn returns a connection for f, a Unix socket. It closes f: the connection has a copy.
func Conn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, is := c.(*net.UnixConn)
	if !is {
		c.Close()
		return nil, errors.New("not a Unix socket")
	}
	return u, nil
}
