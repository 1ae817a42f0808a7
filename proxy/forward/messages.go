package forward

import (
	"errors"
	"syscall"
)

// Message is what an association carries in one piece.
type Message struct {
	Data      []byte
	Stream    uint16
	PPID      uint32 // the payload protocol identifier
	Unordered bool   // it may overtake others of its stream
}

// MessageConn is an association that carries messages: SCTP. It ends as a whole:
// when one side shuts it down, the other can deliver what it had sent before,
// and send no more.
type MessageConn interface {
	side

	// Receive returns the next message, once it is whole. It belongs to the
	// caller until that calls Release. The error is io.EOF when the association
	// was shut down, and all that was sent has been received.
	Receive() (*Message, error)
	Release(*Message)

	// Send hands a message to the kernel, and waits while there is no room for
	// it. The error is syscall.EPIPE when the other side has begun to shut the
	// association down; Receive then tells how it ends.
	Send(*Message) error
}

// CopyMessages is [Copy] for associations.
//
// A shutdown becomes a shutdown, after all that came before it, and an abort
// becomes an abort. Since an association has no half that stays open, what the
// other side has sent and was still under way when the shutdown came is lost,
// as is what it sends from then on.
func CopyMessages(client, endpoint MessageConn, limits Limits, owner Owner) Flow {
	fl := newCopying(client, endpoint, limits, owner)
	fl.start(func() { fl.relay(&fl.toEndpoint, client, endpoint) }, func() { fl.relay(&fl.toClient, endpoint, client) })
	return fl
}

// relay moves messages in direction d until from has ended. When to takes no
// more because it is being shut down, the rest is read all the same: an
// association that is closed with something unread is aborted.
func (fl *copying) relay(d *direction, from, to MessageConn) {
	closing := false // to takes nothing any more
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
