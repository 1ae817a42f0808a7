package main

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// serveTCP starts a server that passes each client to handle, and then closes the connection.
func serveTCP(addr netip.Addr, handle func(*net.TCPConn)) (netip.AddrPort, error) {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err != nil {
		return netip.AddrPort{}, err
	}
	go func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				handle(c)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort(), nil
}

// echo starts a server that sends its name, and then echoes the client's data until EOF.
func echo(addr netip.Addr, name string) (netip.AddrPort, error) {
	return serveTCP(addr, func(c *net.TCPConn) {
		fmt.Fprintln(c, name)
		_, _ = io.Copy(c, c) // the client detects missing data
	})
}

// echoUDP starts a server that echoes each datagram.
func echoUDP(addr netip.Addr) (netip.AddrPort, error) {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err != nil {
		return netip.AddrPort{}, err
	}
	go func() {
		b := make([]byte, 1<<16)
		for {
			n, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(b[:n], from)
		}
	}()
	return c.LocalAddr().(*net.UDPAddr).AddrPort(), nil
}

// bound returns a bound socket and its address. Connections to it are refused while it does not listen; datagrams are
// refused once it is connected.
func bound(addr netip.Addr, kind int) (fd int, at netip.AddrPort, err error) {
	sa, family := sockaddr(netip.AddrPortFrom(addr, 0))
	if fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0); err != nil {
		return 0, at, err
	}
	if err = unix.Bind(fd, sa); err != nil {
		return 0, at, err
	}
	switch sa, err := unix.Getsockname(fd); sa := sa.(type) {
	case *unix.SockaddrInet4:
		return fd, netip.AddrPortFrom(addr, uint16(sa.Port)), err
	case *unix.SockaddrInet6:
		return fd, netip.AddrPortFrom(addr, uint16(sa.Port)), err
	default:
		return 0, at, err
	}
}

// connect connects a socket of bound to itself, so that it receives nothing from others.
func connect(fd int, to netip.AddrPort) error {
	sa, _ := sockaddr(to)
	return unix.Connect(fd, sa)
}

func sockaddr(a netip.AddrPort) (sa unix.Sockaddr, family int) {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}, unix.AF_INET
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}, unix.AF_INET6
}

// held are connections that fill the backlogs of silent addresses.
var held []net.Conn

// silent returns an address that does not answer clients: its backlog is full, as two timeouts in a row have shown.
func silent(addr netip.Addr) (netip.AddrPort, error) {
	fd, at, err := bound(addr, unix.SOCK_STREAM)
	if err != nil {
		return at, err
	}
	if err := unix.Listen(fd, 0); err != nil {
		return at, err
	}
	for unanswered := 0; unanswered < 2; {
		c, err := net.DialTimeout("tcp", at.String(), 500*time.Millisecond)
		if err != nil {
			unanswered++
			continue
		}
		unanswered = 0
		if held = append(held, c); len(held) > 100 {
			return at, errors.New("a backlog does not fill up")
		}
	}
	return at, nil
}

// dial connects to a Service. Each operation on the connection times out after *patience.
func dial(to string) (*net.TCPConn, error) {
	c, err := net.DialTimeout("tcp", to, *patience/4)
	if err != nil {
		return nil, plain(err)
	}
	return c.(*net.TCPConn), c.SetDeadline(time.Now().Add(*patience))
}

// plain returns an error without addresses and ports, which differ between runs.
func plain(err error) error {
	if op := new(net.OpError); errors.As(err, &op) {
		if os := new(os.SyscallError); errors.As(err, &os) {
			return fmt.Errorf("%s: %w", op.Op, os.Err)
		}
		return fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	return err
}

// ask connects to a Service of echo, and returns the endpoint's name.
func ask(to string) (string, error) {
	c, err := dial(to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return line(c)
}

// line reads the first line that an endpoint sends.
func line(c net.Conn) (string, error) {
	var name []byte
	for b := make([]byte, 1); ; {
		if _, err := c.Read(b); err != nil {
			return "", plain(err)
		}
		if b[0] == '\n' {
			return string(name), nil
		}
		name = append(name, b[0])
	}
}

// bounce sends n random bytes and then FIN to an endpoint of echo, and expects both back.
func bounce(c *net.TCPConn, n int64) error {
	sent, got := sha256.New(), sha256.New()
	failed := make(chan error, 1)
	go func() {
		source := rand.NewChaCha8([32]byte{})
		_, err := io.CopyN(io.MultiWriter(c, sent), source, n)
		failed <- errors.Join(err, c.CloseWrite())
	}()
	back, err := io.Copy(got, bufio.NewReaderSize(c, 1<<16))
	if err := errors.Join(plain(err), <-failed); err != nil {
		return err
	}
	if back != n || string(sent.Sum(nil)) != string(got.Sum(nil)) {
		return fmt.Errorf("%d bytes came back of %d, or others", back, n)
	}
	return nil
}

// exchange sends a datagram of n bytes to a Service of echoUDP, and expects it back.
func exchange(to string, n int) error {
	c, err := net.Dial("udp", to)
	if err != nil {
		return plain(err)
	}
	defer c.Close()
	sent := strings.Repeat("d", n)
	b := make([]byte, 1<<16)
	// A UDP client must retransmit.
	for deadline := time.Now().Add(*patience / 4); ; {
		_ = c.SetDeadline(time.Now().Add(*patience / 8))
		if _, err = c.Write([]byte(sent)); err == nil {
			n, err = c.Read(b)
		}
		if err == nil && string(b[:n]) != sent {
			return fmt.Errorf("%d bytes came back of %d", n, len(sent))
		}
		if err == nil || time.Now().After(deadline) {
			return plain(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
