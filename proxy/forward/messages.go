package forward

import (
	"errors"
	"syscall"

	"github.com/usherproxy/usher/proxy/outcome"
)

// Message is a message of an SCTP association.
type Message struct {
	Data      []byte
	Stream    uint16
	PPID      uint32 // the payload protocol identifier
	Unordered bool   // may overtake other messages of its stream
}

// MessageConn is an SCTP association. It has no half-close: when one side shuts it down, the other side cannot send
// more messages on it. Those that it sent before are still delivered.
type MessageConn interface {
	side

	// Receive waits for the next complete message. The caller owns the message until it calls Release. The error is
	// io.EOF when the association was shut down and all sent messages have been received.
	Receive() (*Message, error)
	Release(*Message)

	// Send passes a message to the kernel, and waits until the kernel accepts it. The error is syscall.EPIPE when the
	// other side has begun to shut the association down; Receive then returns the error with which it ends.
	Send(*Message) error
}

// CopyMessages is [Copy] for associations.
//
// A shutdown is passed on as a shutdown, after all earlier messages, and an abort as an abort. Associations have no
// half-close: a client that shuts its association down loses the messages that are still in this process. It also loses
// those that the endpoint sends until its own association is shut down. The same applies with the roles exchanged.
func CopyMessages(client, endpoint MessageConn, limits Limits, owner Owner) Flow {
	fl := newCopying(client, endpoint, limits, owner)
	fl.start(func() { fl.relay(&fl.toEndpoint, client, endpoint) }, func() { fl.relay(&fl.toClient, endpoint, client) })
	return fl
}

// relay moves messages in direction d until the source has ended. If the destination accepts no more because it is
// being shut down, relay still reads the source's remaining messages. Closing an association with unread messages would
// abort it.
func (fl *copying) relay(d *direction, from, to MessageConn) {
	closing := false // the destination accepts no more messages
	for {
		m, err := from.Receive()
		if atLimit(err) {
			fl.reset(outcome.Limit, err)
			return
		}
		if err != nil {
			fl.readEnded(d, err)
			return
		}
		fl.comes(d)
		if !closing {
			err = fl.write(d, func() error { return to.Send(m) })
		}
		size := len(m.Data)
		from.Release(m)
		switch {
		case closing:
		case err == nil:
			d.bytes.Add(int64(size))
		case errors.Is(err, syscall.EPIPE):
			closing = true
		case atLimit(err):
			fl.reset(outcome.Limit, err)
			return
		default:
			fl.reset(d.toReset, err)
			return
		}
	}
}

// atLimit reports whether err is due to a limit of this node: the size of a message, or memory for messages.
func atLimit(err error) bool {
	return errors.Is(err, syscall.EMSGSIZE) || errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ENOMEM)
}
