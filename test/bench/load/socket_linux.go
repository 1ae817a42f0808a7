package load

import (
	"fmt"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls of a loop go to the kernel directly: Go's scheduler is not told, as
// it would be by package unix, since nothing else waits for the thread.

// poll waits for events, for at most the time given; negative means forever.
// Signals (those of Go's scheduler) do not end it early: it then returns none.
func poll(epoll int, events []unix.EpollEvent, wait time.Duration) int {
	ms := int(wait / time.Millisecond)
	if wait < 0 {
		ms = -1
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_WAIT, uintptr(epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), uintptr(ms), 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// pollFor is poll with a wait that need not be whole milliseconds. What is due already is not waited for.
func pollFor(epoll int, events []unix.EpollEvent, wait time.Duration) int {
	t := unix.NsecToTimespec(int64(max(wait, 0)))
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), uintptr(unsafe.Pointer(&t)), 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// watch adds fd to the epoll, or with op EPOLL_CTL_MOD changes what is waited
// for. key comes back in EpollEvent.Fd.
func watch(epoll, op, fd int, events uint32, key int) syscall.Errno {
	e := unix.EpollEvent{Events: events, Fd: int32(key)}
	_, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epoll), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(&e)), 0, 0)
	return errno
}

func send(fd int, b []byte) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}

func receive(fd int, b []byte) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
	return int(n), errno
}

func shut(fd int) { _, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

// address is an IPv4 address and port as the kernel takes it.
type address unix.RawSockaddrInet4

func newAddress(a netip.AddrPort) (*address, error) {
	if !a.Addr().Is4() {
		return nil, fmt.Errorf("%s: only IPv4 is measured", a)
	}
	out := &address{Family: unix.AF_INET, Addr: a.Addr().As4()}
	port := (*[2]byte)(unsafe.Pointer(&out.Port))
	port[0], port[1] = byte(a.Port()>>8), byte(a.Port())
	return out, nil
}

// open returns a socket of the type given (SOCK_STREAM, SOCK_DGRAM) that never
// blocks.
func open(kind int) (int, syscall.Errno) {
	fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, unix.AF_INET, uintptr(kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC), 0)
	return int(fd), errno
}

// connect begins to connect; 0 means that it is under way or done.
func connect(fd int, to *address) syscall.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(to)), unsafe.Sizeof(*to))
	if errno == unix.EINPROGRESS {
		return 0
	}
	return errno
}

// accept returns a connection that never blocks.
func accept(fd int) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), 0, 0, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	return int(n), errno
}

// receiveFrom and sendTo are for a datagram socket that is not connected.
func receiveFrom(fd int, b []byte, from *address) (int, syscall.Errno) {
	size := uint32(unsafe.Sizeof(*from))
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, uintptr(unsafe.Pointer(from)), uintptr(unsafe.Pointer(&size)))
	return int(n), errno
}

func sendTo(fd int, b []byte, to *address) {
	_, _, _ = unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, uintptr(unsafe.Pointer(to)), unsafe.Sizeof(*to))
}
