package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// On the line, a packet of three numbers asks for a descriptor: a socket's
// domain, kind and protocol. The answer is an errno, with the descriptor
// (SCM_RIGHTS) if that is 0.
const (
	askSize    = 12
	answerSize = 4

	// wantTun in the place of the domain asks for the device that leads
	// elsewhere.
	wantTun = unix.AF_UNSPEC
)

// Socket makes a socket in the namespace, as socket(2) does. With it this process
// may do what it may with its own; and since it made the namespace, it
// may also bind low ports there.
func (n *Namespace) Socket(domain, kind, protocol int) (fd int, err error) {
	return n.descriptor(domain, kind, protocol)
}

// Tun returns the device to which all is sent inside that is for elsewhere: each
// read and write is an IP packet, of MTU bytes at the most. It is called once, and
// the caller closes it.
func (n *Namespace) Tun() (*os.File, error) {
	fd, err := n.descriptor(wantTun, 0, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tunDevice, err)
	}
	return os.NewFile(uintptr(fd), tunDevice), nil
}

func (n *Namespace) descriptor(domain, kind, protocol int) (fd int, err error) {
	n.lineMu.Lock()
	defer n.lineMu.Unlock()
	ask := make([]byte, 0, askSize)
	for _, number := range []int{domain, kind, protocol} {
		ask = binary.NativeEndian.AppendUint32(ask, uint32(number))
	}
	if _, err := n.line.Write(ask); err != nil {
		return -1, fmt.Errorf("asking inside for a socket: %w", err)
	}
	answer, oob := make([]byte, answerSize), make([]byte, unix.CmsgSpace(4))
	size, oobSize, _, _, err := n.line.ReadMsgUnix(answer, oob)
	if err != nil || size != answerSize {
		return -1, errors.Join(errors.New("asking inside for a socket: no answer"), err)
	}
	if errno := unix.Errno(binary.NativeEndian.Uint32(answer)); errno != 0 {
		return -1, errno
	}
	return handedOut(oob[:oobSize])
}

// handedOut returns the descriptor that came with a packet. Package net has seen
// to it that it is closed on exec.
func handedOut(oob []byte) (fd int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return -1, err
	}
	if len(messages) != 1 {
		return -1, errors.New("asking inside for a socket: it did not come with the answer (are too many files open?)")
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

// serveLine hands out descriptors until the other side is gone.
func (h *helper) serveLine(line *net.UnixConn) {
	ask := make([]byte, askSize)
	for {
		size, err := line.Read(ask)
		if err != nil || size != askSize {
			return
		}
		number := func(i int) int { return int(int32(binary.NativeEndian.Uint32(ask[4*i:]))) }
		var fd int
		if number(0) == wantTun {
			fd, err = openTun()
		} else {
			fd, err = unix.Socket(number(0), number(1)|unix.SOCK_CLOEXEC, number(2))
		}
		var errno unix.Errno
		var rights []byte
		switch {
		case err == nil:
			rights = unix.UnixRights(fd)
		case !errors.As(err, &errno):
			errno = unix.EIO
		}
		_, _, sendErr := line.WriteMsgUnix(binary.NativeEndian.AppendUint32(nil, uint32(errno)), rights, nil)
		if err == nil {
			unix.Close(fd)
		}
		if sendErr != nil {
			return
		}
	}
}
