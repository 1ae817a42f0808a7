package load

import (
	"fmt"
	"net/netip"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// Endpoint contains the addresses on which an endpoint listens.
type Endpoint struct {
	Echo netip.AddrPort // TCP: echoes
	Sink netip.AddrPort // TCP: reads, and answers nothing
	UDP  netip.AddrPort // sends each datagram back
	// Loops is the number of threads for Echo and UDP, each with its own listeners. Sink has as many threads, so that
	// no answer waits for bulk data.
	Loops int
}

// Serve runs the endpoint. It returns only if it cannot start; it calls ready when clients may connect.
func Serve(e Endpoint, ready func()) error {
	runtime.GOMAXPROCS(2*e.Loops + 1)
	debug.SetGCPercent(-1) // nothing is allocated, and the loops would not stop for a collection
	for range e.Loops {
		answers, err := newServer(place{e.Echo, echoListener, unix.SOCK_STREAM}, place{e.UDP, datagrams, unix.SOCK_DGRAM})
		if err != nil {
			return err
		}
		reads, err := newServer(place{e.Sink, sinkListener, unix.SOCK_STREAM})
		if err != nil {
			return err
		}
		go answers.run()
		go reads.run()
	}
	ready()
	select {}
}

// server is one thread of the endpoint.
type server struct {
	epoll  int
	roles  []role // of each descriptor
	buffer []byte
}

// role is the purpose of a descriptor.
type role uint8

const (
	echoListener role = iota + 1
	sinkListener
	echoConn
	sinkConn
	datagrams
)

// bulk is the number of bytes that the sink reads at once, and the receive buffer of a descriptor.
const bulk = 256 << 10

// place is an address on which a server listens.
type place struct {
	at   netip.AddrPort
	role role
	kind int // of socket
}

func newServer(places ...place) (*server, error) {
	s := &server{roles: make([]role, 1<<16), buffer: make([]byte, bulk)}
	var err error
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, err
	}
	for _, p := range places {
		if err := s.listen(p.at, p.role, p.kind); err != nil {
			return nil, fmt.Errorf("listening on %s: %w", p.at, err)
		}
	}
	return s, nil
}

func (s *server) listen(at netip.AddrPort, role role, kind int) error {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for _, option := range []int{unix.SO_REUSEADDR, unix.SO_REUSEPORT} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1); err != nil {
			return err
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}); err != nil {
		return err
	}
	if kind == unix.SOCK_DGRAM {
		// Capacity for the windows of all clients, so that no datagram is lost here.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
	} else {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil { // connections inherit it
			return err
		}
		if err := unix.Listen(fd, 4096); err != nil {
			return err
		}
	}
	return s.add(fd, role)
}

func (s *server) add(fd int, role role) error {
	s.roles[fd] = role
	if errno := watch(s.epoll, unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN, fd); errno != 0 {
		return errno
	}
	return nil
}

func (s *server) run() {
	runtime.LockOSThread()
	events := make([]unix.EpollEvent, 64)
	for {
		n := poll(s.epoll, events, -1)
		for _, e := range events[:n] {
			s.ready(int(e.Fd))
		}
	}
}

func (s *server) ready(fd int) {
	switch s.roles[fd] {
	case echoListener:
		s.accept(fd, echoConn)
	case sinkListener:
		s.accept(fd, sinkConn)
	case echoConn:
		if n := s.read(fd, 16<<10); n > 0 {
			// Clients wait for the answer, so the socket has free buffer space.
			_, _ = send(fd, s.buffer[:n])
		}
	case sinkConn:
		s.read(fd, bulk)
	case datagrams:
		s.answer(fd)
	}
}

func (s *server) accept(listener int, role role) {
	fd, errno := accept(listener)
	if errno != 0 {
		return
	}
	if s.add(fd, role) != nil {
		shut(fd)
	}
}

// read returns the number of bytes read, and closes the connection at EOF.
func (s *server) read(fd, most int) int {
	n, errno := receive(fd, s.buffer[:most])
	if errno == unix.EAGAIN {
		return 0
	}
	if errno != 0 || n == 0 {
		shut(fd)
		return 0
	}
	return n
}

func (s *server) answer(fd int) {
	var from address
	for range 64 {
		n, errno := receiveFrom(fd, s.buffer[:2048], &from)
		if errno != 0 {
			return
		}
		sendTo(fd, s.buffer[:n], &from)
	}
}
