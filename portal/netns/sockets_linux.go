package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal/fdpass"
)

// On the line, a packet of four numbers requests descriptors: a socket's domain, kind and protocol, and the count. The
// answer is an errno, with the descriptors (SCM_RIGHTS) if that is 0.
const (
	askSize    = 16
	answerSize = 4

	// maxBatch limits how many sockets are made in advance.
	maxBatch = 64

	// wantTun in place of the domain requests the device for other destinations.
	wantTun = unix.AF_UNSPEC
)

// socketPool has sockets made in advance: the start needs thousands, and each request costs two switches between
// processes. Unused ones are closed when the process ends.
type socketPool struct {
	fds   []int
	batch int // how many the last request made
}

// socketKind are the arguments of socket(2).
type socketKind struct{ domain, kind, protocol int }

// Socket makes a socket in the namespace, as socket(2) does. This process can use it like its own sockets; and since it
// made the namespace, it can also bind low ports there.
func (n *Namespace) Socket(domain, kind, protocol int) (fd int, err error) {
	n.lineMu.Lock()
	defer n.lineMu.Unlock()
	of := socketKind{domain, kind, protocol}
	s := n.socketPools[of]
	if s == nil {
		s = &socketPool{}
		n.socketPools[of] = s
	}
	if len(s.fds) == 0 {
		s.batch = min(max(1, 2*s.batch), maxBatch)
		if s.fds, err = n.descriptors(of, s.batch); err != nil {
			s.batch = 0
			return -1, err
		}
	}
	fd = s.fds[0]
	s.fds = s.fds[1:]
	return fd, nil
}

// ListenPacket returns a UDP socket on an address of the namespace.
func (n *Namespace) ListenPacket(at netip.AddrPort) (net.PacketConn, error) {
	f, err := n.bound(unix.SOCK_DGRAM, at)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return net.FilePacketConn(f)
}

// Listen returns a TCP listener on an address of the namespace.
func (n *Namespace) Listen(at netip.AddrPort) (net.Listener, error) {
	f, err := n.bound(unix.SOCK_STREAM, at)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := unix.Listen(int(f.Fd()), unix.SOMAXCONN); err != nil {
		return nil, fmt.Errorf("listening on %s: %w", at, err)
	}
	return net.FileListener(f)
}

// bound returns an IPv4 socket that is bound to at.
func (n *Namespace) bound(kind int, at netip.AddrPort) (*os.File, error) {
	fd, err := n.Socket(unix.AF_INET, kind, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("binding %s: %w", at, err)
	}
	return os.NewFile(uintptr(fd), at.String()), nil
}

// Tun returns the device for packets from inside to other destinations: each read and write is an IP packet of at most
// MTU bytes. Tun may be called once, and the caller closes the device.
func (n *Namespace) Tun() (*os.File, error) {
	n.lineMu.Lock()
	defer n.lineMu.Unlock()
	fds, err := n.descriptors(socketKind{domain: wantTun}, 1)
	if err != nil {
		return nil, fmt.Errorf("%s: %w%s", tunDevice, err, tunRemedies[err])
	}
	return os.NewFile(uintptr(fds[0]), tunDevice), nil
}

// tunRemedies are the remedies if the device is unavailable: see the kernel's Documentation/networking/tuntap.rst.
var tunRemedies = map[error]string{
	unix.EACCES: "; `sudo chmod 0666 " + tunDevice + "` gives all users access, as on most systems",
	unix.ENOENT: "; `sudo mkdir -p /dev/net && sudo mknod -m 0666 " + tunDevice + " c 10 200` creates it",
	unix.ENODEV: "; `sudo modprobe tun` loads the missing module",
	unix.ENXIO:  "; `sudo modprobe tun` loads the missing module",
	unix.EPERM:  "; start the container with the device allowed, as in `--device " + tunDevice + "`",
}

// descriptors requests descriptors. The caller holds lineMu.
func (n *Namespace) descriptors(of socketKind, count int) (fds []int, err error) {
	ask := make([]byte, 0, askSize)
	for _, number := range []int{of.domain, of.kind, of.protocol, count} {
		ask = binary.NativeEndian.AppendUint32(ask, uint32(number))
	}
	if _, err := n.line.Write(ask); err != nil {
		return nil, fmt.Errorf("requesting a descriptor from the namespace: %w", err)
	}
	answer := make([]byte, answerSize)
	size, fds, err := fdpass.Receive(n.line, answer, count)
	if err != nil && err != fdpass.ErrTruncated || size != answerSize {
		return nil, errors.Join(errors.New("requesting a descriptor from the namespace: no answer"), err)
	}
	if errno := unix.Errno(binary.NativeEndian.Uint32(answer)); errno != 0 {
		return nil, errno
	}
	if len(fds) == 0 {
		return nil, unix.EMFILE // this process has reached its limit of open files
	}
	return fds, nil
}

// serveLine sends descriptors until the other side has closed.
func (h *helper) serveLine(line *net.UnixConn) {
	ask := make([]byte, askSize)
	for {
		size, err := line.Read(ask)
		if err != nil || size != askSize {
			return
		}
		number := func(i int) int { return int(int32(binary.NativeEndian.Uint32(ask[4*i:]))) }
		fds, err := open(socketKind{number(0), number(1), number(2)}, number(3))
		var errno unix.Errno
		if err != nil && !errors.As(err, &errno) {
			errno = unix.EIO
		}
		if len(fds) > 0 {
			errno = 0
		}
		err = fdpass.Send(line, binary.NativeEndian.AppendUint32(nil, uint32(errno)), fds...)
		for _, fd := range fds {
			unix.Close(fd)
		}
		if err != nil {
			return
		}
	}
}

// open opens the requested descriptors, or fewer if there is an error.
func open(of socketKind, count int) (fds []int, err error) {
	for range count {
		var fd int
		if of.domain == wantTun {
			fd, err = openTun()
		} else {
			fd, err = unix.Socket(of.domain, of.kind|unix.SOCK_CLOEXEC, of.protocol)
		}
		if err != nil {
			break
		}
		fds = append(fds, fd)
	}
	return fds, err
}
