package load

import (
	"fmt"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A loop's system calls bypass Go's scheduler, which package unix would notify, since no other goroutine needs the
// thread.

// poll waits for events, for at most the given time; negative means forever. A signal (such as those of Go's scheduler)
// ends the wait early: poll then returns 0.
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

// pollFor is poll with a finer resolution than milliseconds. A wait that is due already does not block.
func pollFor(epoll int, events []unix.EpollEvent, wait time.Duration) int {
	t := unix.NsecToTimespec(int64(max(wait, 0)))
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), uintptr(unsafe.Pointer(&t)), 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// watch adds fd to the epoll, or with op EPOLL_CTL_MOD changes its events. key is returned in EpollEvent.Fd.
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

// address is an IPv4 address and port in the kernel's format.
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

// open returns a non-blocking socket of the given type (SOCK_STREAM, SOCK_DGRAM).
func open(kind int) (int, syscall.Errno) {
	fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, unix.AF_INET, uintptr(kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC), 0)
	return int(fd), errno
}

// connect begins to connect; 0 means that it is in progress or done.
func connect(fd int, to *address) syscall.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(to)), unsafe.Sizeof(*to))
	if errno == unix.EINPROGRESS {
		return 0
	}
	return errno
}

// accept returns a non-blocking connection.
func accept(fd int) (int, syscall.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), 0, 0, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	return int(n), errno
}

// receiveFrom and sendTo are for an unconnected datagram socket.
func receiveFrom(fd int, b []byte, from *address) (int, syscall.Errno) {
	size := uint32(unsafe.Sizeof(*from))
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, uintptr(unsafe.Pointer(from)), uintptr(unsafe.Pointer(&size)))
	return int(n), errno
}

func sendTo(fd int, b []byte, to *address) {
	_, _, _ = unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, uintptr(unsafe.Pointer(to)), unsafe.Sizeof(*to))
}
