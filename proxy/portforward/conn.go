package portforward

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/streaming/pkg/httpstream"
)

// confirmTime is how long Confirm waits for a refusal if the endpoint sends nothing. The node connects within the Pod
// after it has answered for the streams, and reports a failure then: on a busy node, after several dozen milliseconds.
const confirmTime = 200 * time.Millisecond

// causeTime is how long Read waits, after the end of the data, for the error stream to report the cause.
const causeTime = time.Second

// Conn is a connection to a port in a Pod. It is a forward.Conn.
type Conn struct {
	dialer *Dialer
	via    *connection
	data   httpstream.Stream
	errs   httpstream.Stream

	written  atomic.Bool   // data was written to the stream
	answered chan struct{} // closed when first and firstErr are set
	first    []byte        // the first data, as far as Read has not returned it
	firstErr error

	over    chan struct{} // closed when the node has ended the forwarding, and cause is set
	cause   error         // nil for a regular end
	closing sync.Once
	closed  chan struct{}
}

func newConn(d *Dialer, via *connection, data, errs httpstream.Stream) *Conn {
	c := &Conn{dialer: d, via: via, data: data, errs: errs,
		answered: make(chan struct{}), over: make(chan struct{}), closed: make(chan struct{})}
	go errs.Close() // nothing is ever written to it
	go c.readErrors()
	go c.readFirst()
	return c
}

// readErrors determines why the node ends the forwarding.
func (c *Conn) readErrors() {
	defer close(c.over)
	message, err := io.ReadAll(io.LimitReader(c.errs, maxMessage))
	switch {
	case len(message) > 0:
		c.cause = causeOf(string(message))
	case err != nil:
		c.cause = err
	default:
		select {
		case <-c.via.http.CloseChan():
			c.cause = errLost
		default:
		}
	}
	if c.refused() && !errors.Is(c.cause, syscall.ECONNREFUSED) {
		c.dialer.retire(c.via) // it may reach a former Pod of this name
	}
}

// maxMessage is the maximum size of a node's error message.
const maxMessage = 16 << 10

// firstSize is the number of bytes read before the first call of Read.
const firstSize = 4 << 10

func (c *Conn) readFirst() {
	defer close(c.answered)
	buf := make([]byte, firstSize)
	n, err := c.data.Read(buf)
	c.first, c.firstErr = buf[:n], err
}

// Confirm waits until the endpoint has sent data, or has had the time to refuse. After an error, the endpoint has
// received none of the written data, so all of it can be written to another one.
func (c *Conn) Confirm() error {
	timer := time.NewTimer(confirmTime)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.over:
	case <-c.answered:
		if len(c.first) > 0 {
			return nil
		}
		select {
		case <-c.over: // cause has the reason
		case <-timer.C:
			return nil
		}
	}
	if c.cause == nil || c.written.Load() && !c.refused() {
		return nil
	}
	return c.cause
}

// refused reports whether the node could not connect to the endpoint, as opposed to a connection that broke.
func (c *Conn) refused() bool {
	var node nodeError
	if !errors.As(c.cause, &node) {
		return false
	}
	for _, sign := range []string{"reset by peer", "broken pipe", "use of closed", "EOF"} {
		if strings.Contains(string(node), sign) {
			return false
		}
	}
	return true
}

// nodeError is a node's message on the error stream.
type nodeError string

func (e nodeError) Error() string { return string(e) }

// causeOf returns the error for a node's message.
func causeOf(message string) error {
	err := nodeError(strings.TrimSpace(message))
	if strings.Contains(message, "connection refused") {
		return fmt.Errorf("%w: %w", syscall.ECONNREFUSED, err)
	}
	return err
}

func (c *Conn) Read(p []byte) (int, error) {
	<-c.answered
	if len(c.first) > 0 {
		n := copy(p, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	err := c.firstErr
	if err == nil {
		var n int
		if n, err = c.data.Read(p); n > 0 {
			return n, nil
		}
	}
	return 0, c.endOfData(err)
}

// endOfData returns how the data ended: spdystream reports a reset, a lost connection and a FIN alike.
func (c *Conn) endOfData(err error) error {
	timer := time.NewTimer(causeTime)
	defer timer.Stop()
	select {
	case <-c.closed:
		return net.ErrClosed
	case <-c.over:
		if c.cause != nil {
			return c.cause
		}
	case <-timer.C:
	}
	return err
}

// HungUp reports to the forwarder whether the node has ended the forwarding, even while earlier data is
// unread.
func (c *Conn) HungUp() (ended bool, err error) {
	select {
	case <-c.over:
		return true, c.cause
	default:
		return false, nil
	}
}

// Write implements net.Conn. It returns EPIPE once the endpoint has closed the connection.
func (c *Conn) Write(p []byte) (int, error) {
	select {
	case <-c.closed:
		return 0, net.ErrClosed
	case <-c.over:
		return 0, syscall.EPIPE
	default:
	}
	if len(p) == 0 {
		return 0, nil // must not set written, which would prevent a retry: see Confirm
	}
	c.written.Store(true)
	data := bytes.Clone(p) // the write may continue after Close
	if err := c.unlessClosed(func() error { _, err := c.data.Write(data); return err }); err != nil {
		return 0, err
	}
	return len(p), nil
}

// CloseWrite sends a FIN. The node may soon end the other direction, too: see the package comment.
func (c *Conn) CloseWrite() error { return c.unlessClosed(c.data.Close) }

// unlessClosed calls write, which blocks while the node does not read from any stream of the Pod. It returns at once
// after Close.
func (c *Conn) unlessClosed(write func() error) error {
	done := make(chan error, 1)
	go func() { done <- write() }()
	select {
	case err := <-done:
		return err
	case <-c.closed:
		return net.ErrClosed
	}
}

// SetLinger does nothing: port-forward has no resets.
func (c *Conn) SetLinger(int) error { return nil }

// Close ends the connection. It does not wait for the network.
func (c *Conn) Close() error {
	c.closing.Do(func() {
		close(c.closed)
		go c.end()
	})
	return nil
}

func (c *Conn) end() {
	_, _ = c.data.Reset(), c.errs.Reset() // they fail only if the connection is closed
	c.via.http.RemoveStreams(c.data, c.errs)
	c.dialer.leave(c.via)
}

// LocalAddr and RemoteAddr implement net.Conn. Both return the Pod's name: neither side has an address.
func (c *Conn) LocalAddr() net.Addr  { return addr(c.via.pod.String()) }
func (c *Conn) RemoteAddr() net.Addr { return addr(c.via.pod.String()) }

// addr is a Pod's name.
type addr string

func (addr) Network() string  { return "portforward" }
func (a addr) String() string { return string(a) }

// SetDeadline fails, as do the two methods below: streams have no deadlines.
func (c *Conn) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (c *Conn) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (c *Conn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }
