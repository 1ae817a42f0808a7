package forward

import (
	"bytes"

	"golang.org/x/sys/unix"
)

// Client is a client that was accepted, with what it has sent before it had an
// endpoint.
type Client struct {
	Socket
	first []byte
	err   error // that reading has met
}

// readAhead bounds what is read of a client that has no endpoint yet: requests are
// smaller, and there may be many such clients.
const readAhead = 4 << 10

// ReadAhead takes what c has sent so far, and reports whether there is any. So an
// endpoint gets it at once when it has accepted, and even with the last packet of
// the handshake. Only the loop may call it, once.
func (l *Loop) ReadAhead(c *Client) bool {
	n, err := c.read(l.buffer[:readAhead])
	switch {
	case n > 0:
		c.first = bytes.Clone(l.buffer[:n:n])
	case err != nil && err != unix.EAGAIN && err != unix.EINTR:
		c.err = err // the kernel tells it once
	}
	return n > 0
}
