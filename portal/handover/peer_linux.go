package handover

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal/fdpass"
)

// maxPacket is the receive buffer's size in bytes. The names in one packet are shorter, as no name exceeds half of it.
const maxPacket = 64 << 10

// peer is the other side of a connection.
type peer struct{ *net.UnixConn }

// within makes all further messages fail after d.
func (p peer) within(d time.Duration) { _ = p.SetDeadline(time.Now().Add(d)) } // fails only once it is closed

// send sends text, with copies of descriptors.
func (p peer) send(text string, fds ...int) error {
	return fdpass.Send(p.UnixConn, []byte(text), fds...)
}

// receive returns the other side's text and descriptors, which the caller closes.
func (p peer) receive() (text string, fds []int, err error) {
	buf := make([]byte, maxPacket)
	n, fds, err := fdpass.Receive(p.UnixConn, buf, SocketsAtOnce)
	if err != nil {
		Discard(fds)
		return "", nil, err
	}
	return string(buf[:n]), fds, nil
}

// receiveChallenge returns the other side's text and its challenge, which the caller closes.
func (p peer) receiveChallenge() (text string, c challenge, err error) {
	text, fds, err := p.receive()
	if err != nil {
		return "", -1, err
	}
	if len(fds) != 1 {
		Discard(fds)
		return "", -1, fmt.Errorf("got %d descriptors with %q, want 1", len(fds), text)
	}
	return text, challenge(fds[0]), nil
}

// receiveWord waits for one of several words.
func (p peer) receiveWord(words ...string) (string, error) {
	text, fds, err := p.receive()
	Discard(fds)
	if err == nil && !slices.Contains(words, text) {
		err = fmt.Errorf("received %q, want %q", text, words)
	}
	return text, err
}

// name returns the name of the other end, which must be abstract (unix(7)): "@" and the bytes that only one socket can
// have. A net.Addr is ambiguous: its name ends at the first NUL, and may also be a path that begins with @. A process
// without the capability could relay the proof of one whose name it seems to have.
func (p peer) name() (name string, err error) {
	raw, err := p.SyscallConn()
	if err != nil {
		return "", err
	}
	controlled := raw.Control(func(fd uintptr) {
		var addr unix.RawSockaddrUnix
		length := uint32(unsafe.Sizeof(addr))
		if _, _, errno := unix.RawSyscall(unix.SYS_GETPEERNAME, fd, uintptr(unsafe.Pointer(&addr)), uintptr(unsafe.Pointer(&length))); errno != 0 {
			err = errno
			return
		}
		path := unsafe.Slice((*byte)(unsafe.Pointer(&addr.Path)), length-uint32(unsafe.Offsetof(addr.Path)))
		if len(path) < 2 || path[0] != 0 {
			err = errors.New("the other end has no abstract name")
			return
		}
		name = "@" + string(path[1:])
	})
	return name, errors.Join(controlled, err)
}

// cred returns the credentials of the process that called connect or listen; another one may own the socket now.
func (p peer) cred() (who *unix.Ucred, err error) {
	raw, err := p.SyscallConn()
	if err != nil {
		return nil, err
	}
	controlled := raw.Control(func(fd uintptr) {
		who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return who, errors.Join(controlled, err)
}

// sameUser reports whether the other side runs as this process's user. Nothing is received from other users.
func (p peer) sameUser() bool {
	who, err := p.cred()
	return err == nil && int(who.Uid) == os.Geteuid()
}

// String describes the other side. Process ID 0 means a process in a PID namespace that this process cannot see.
func (p peer) String() string {
	who, err := p.cred()
	if err != nil {
		return "a process that has exited"
	}
	return fmt.Sprintf("process %d of user %d", who.Pid, who.Uid)
}

// Close closes the connection, with the descriptors in messages that were not received.
func (p peer) Close() { interrupted(func() { p.UnixConn.Close() }) }

// Discard closes descriptors of any kind that another process has sent. That process cannot make Discard block.
func Discard(fds []int) {
	for _, fd := range fds {
		closeFD(fd)
	}
}

func closeFD(fd int) { interrupted(func() { unix.Close(fd) }) }

// interrupted runs do and ends the waits in it that another process could cause. Closing the last copy of a TCP socket
// with SO_LINGER waits until all its data is acknowledged, even if that copy is in a packet that was never received. A
// signal ends the wait (sk_stream_wait_close in net/core/stream.c). It is SIGURG, which Go's runtime sends to its own
// threads, and which has no other effect.
func interrupted(do func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread, done := unix.Gettid(), make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				_ = unix.Tgkill(unix.Getpid(), thread, unix.SIGURG)
			}
		}
	})
	do()
	close(done)
	watching.Wait()
}
