package cluster

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

// server sends its address in a line to each client and then sends back all it receives.
type server struct {
	addr     netip.AddrPort
	listener net.Listener

	mu       sync.Mutex
	accepted []time.Time
	conns    map[net.Conn]struct{}
}

// serve starts a server on an address of ns.
func serve(ns *lab.Namespace, addr netip.AddrPort) *server {
	GinkgoHelper()
	s := &server{addr: addr, listener: ns.Listen(addr.String()), conns: map[net.Conn]struct{}{}}
	lab.Serve(s.listener, func(c net.Conn) {
		s.mu.Lock()
		s.accepted = append(s.accepted, time.Now())
		s.conns[c] = struct{}{}
		s.mu.Unlock()
		fmt.Fprintln(c, s.addr)
		_, _ = io.Copy(c, c)
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	})
	return s
}

// stop closes the listener, as a program does on SIGTERM. Open connections continue.
func (s *server) stop() { s.listener.Close() }

// awaitLast waits until no new connections have arrived for 250 ms. usher selects a terminating endpoint until it gets
// the update, and the kernel resets connections in the backlog when their listener closes.
func (s *server) awaitLast() {
	GinkgoHelper()
	Eventually(func() time.Duration { return time.Since(s.last()) }).WithTimeout(soon).Should(BeNumerically(">", 250*time.Millisecond))
}

// connections returns the number of connections so far.
func (s *server) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.accepted)
}

// last returns the time of the last connection.
func (s *server) last() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.accepted) == 0 {
		return time.Time{}
	}
	return s.accepted[len(s.accepted)-1]
}

// ask connects to a Service and returns the server that answered.
func ask(d *lab.Dialer, vip string) (netip.AddrPort, error) { return askFrom(d, "", vip) }

func askFrom(d *lab.Dialer, from, vip string) (netip.AddrPort, error) {
	c, err := d.Dial(from, vip, 10*time.Second)
	if err != nil {
		return netip.AddrPort{}, err
	}
	defer c.Close()
	return readName(c)
}

// answers returns a function for Eventually that calls ask.
func answers(d *lab.Dialer, vip string) func() (netip.AddrPort, error) {
	return func() (netip.AddrPort, error) { return ask(d, vip) }
}

// failure returns a function for Eventually that connects and returns only the error. Its timeout is short, for
// addresses that do not respond.
func failure(d *lab.Dialer, vip string) func() error {
	return failureFrom(d, "", vip, 300*time.Millisecond)
}

func failureFrom(d *lab.Dialer, from, vip string, timeout time.Duration) func() error {
	return func() error {
		c, err := d.Dial(from, vip, timeout)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = readNameWithin(c, 5*time.Second)
		return err
	}
}

// readName reads the first line of a server.
func readName(c net.Conn) (netip.AddrPort, error) { return readNameWithin(c, 30*time.Second) }

func readNameWithin(c net.Conn, d time.Duration) (netip.AddrPort, error) {
	if err := c.SetReadDeadline(time.Now().Add(d)); err != nil {
		return netip.AddrPort{}, err
	}
	var line []byte
	buf := make([]byte, 1)
	for {
		if _, err := c.Read(buf); err != nil {
			return netip.AddrPort{}, fmt.Errorf("reading the server's name: %w", err)
		}
		if buf[0] == '\n' {
			return netip.ParseAddrPort(string(line))
		}
		line = append(line, buf[0])
	}
}

// connection is a connection that stays open.
type connection struct {
	net.Conn
	server netip.AddrPort
}

// connect opens a connection to a Service.
func connect(d *lab.Dialer, vip string) (*connection, error) {
	c, err := d.Dial("", vip, 10*time.Second)
	if err != nil {
		return nil, err
	}
	name, err := readName(c)
	if err != nil {
		c.Close()
		return nil, err
	}
	DeferCleanup(func() { c.Close() })
	return &connection{c, name}, nil
}

// works returns an error unless the server echoes bytes.
func (c *connection) works() error {
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("?")); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 1))
	return err
}
