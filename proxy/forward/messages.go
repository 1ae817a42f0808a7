package forward

import (
	"errors"
	"syscall"
)

// Message is a message of an association.
type Message struct {
	Data      []byte
	Stream    uint16
	PPID      uint32 // the payload protocol identifier
	Unordered bool   // may overtake other messages of its stream
}

// MessageConn is an association that carries messages: SCTP. It ends as a whole: when one side shuts it down, the other
// can deliver the messages that it had sent before, and send no more.
type MessageConn interface {
	side

	// Receive returns the next message once it is complete. The caller owns it until it calls Release. The error is
	// io.EOF when the association was shut down and all sent messages have been received.
	Receive() (*Message, error)
	Release(*Message)

	// Send passes a message to the kernel, and waits until that accepts it. The error is syscall.EPIPE when the other
	// side has begun to shut the association down; Receive then returns how it ends.
	Send(*Message) error
}

// CopyMessages is [Copy] for associations.
//
// A shutdown becomes a shutdown, after all earlier messages, and an abort becomes an abort. An association has no half
// that stays open. So messages of the other side are lost if they were still under way at the shutdown or were sent
// later.
func CopyMessages(client, endpoint MessageConn, limits Limits, owner Owner) Flow {
	fl := newCopying(client, endpoint, limits, owner)
	fl.start(func() { fl.relay(&fl.toEndpoint, client, endpoint) }, func() { fl.relay(&fl.toClient, endpoint, client) })
	return fl
}

// relay moves messages in direction d until from has ended. When to accepts no more because it is being shut down,
// relay still reads the rest: an association that is closed with unread messages is aborted.
func (fl *copying) relay(d *direction, from, to MessageConn) {
	closing := false // to accepts nothing any longer
	for {
		m, err := from.Receive()
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
		default:
			fl.reset(d.toReset, err)
			return
		}
	}
}
