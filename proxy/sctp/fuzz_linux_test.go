//go:build !386

package sctp

import (
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/ishidawataru/sctp"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/proxy/forward"
)

// sndRcv returns the control message that the kernel returns with a message: a struct sctp_sndrcvinfo.
func sndRcv(stream, flags uint16, ppid uint32) []byte {
	const size = 32
	b := make([]byte, unix.CmsgSpace(size))
	binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(size)))
	binary.NativeEndian.PutUint32(b[8:], unix.IPPROTO_SCTP)
	binary.NativeEndian.PutUint32(b[12:], sctp.SCTP_CMSG_SNDRCV)
	data := b[unix.CmsgLen(0):]
	binary.NativeEndian.PutUint16(data, stream)
	binary.NativeEndian.PutUint16(data[4:], flags)
	binary.BigEndian.PutUint32(data[8:], ppid)
	return b
}

// FuzzDescribe: no control message changes the message's bytes, and without a stream there is no description.
func FuzzDescribe(f *testing.F) {
	f.Add(sndRcv(7, 0, 46))
	f.Add(append(sndRcv(0, 0, 0)[:16], sndRcv(7, sctp.SCTP_UNORDERED, 46)...))
	f.Add(sndRcv(7, 0, 46)[:20])
	f.Fuzz(func(t *testing.T, control []byte) {
		m := &forward.Message{Data: []byte("data")}
		if !describe(m, control) && (m.Stream != 0 || m.PPID != 0 || m.Unordered) {
			t.Errorf("%+v is made of nothing", m)
		}
		if string(m.Data) != "data" {
			t.Errorf("the message is %q now", m.Data)
		}
	})
}

func TestDescribeReadsStreamIdentifierAndOrder(t *testing.T) {
	m := &forward.Message{}
	if !describe(m, sndRcv(7, sctp.SCTP_UNORDERED, 46)) || m.Stream != 7 || m.PPID != 46 || !m.Unordered {
		t.Errorf("%+v", m)
	}
}

// notification returns the beginning of a union sctp_notification: type, flags, length, and the following bytes.
func notification(kind sctp.SCTPNotificationType, state sctp.SCTPState) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(kind))
	b = binary.NativeEndian.AppendUint16(b, 0)
	b = binary.NativeEndian.AppendUint32(b, 20)
	b = binary.NativeEndian.AppendUint16(b, uint16(state))
	return append(b, make([]byte, 10)...)
}

// noSocket stands for an association without an error in the kernel.
const noSocket = -1

// FuzzNotified: a notification ends an association, discards a part of a message, or has no effect. It never extends
// a message.
func FuzzNotified(f *testing.F) {
	f.Add(notification(sctp.SCTP_ASSOC_CHANGE, sctp.SCTP_COMM_LOST))
	f.Add(notification(sctp.SCTP_PARTIAL_DELIVERY_EVENT, 0))
	f.Add(notification(sctp.SCTP_ASSOC_CHANGE, sctp.SCTP_RESTART)[:9])
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &forward.Message{Data: []byte("data")}
		err := notified(noSocket, b, m)
		if err != nil && err != io.EOF && !errors.Is(err, unix.ECONNRESET) {
			t.Error(err)
		}
		if s := string(m.Data); s != "data" && (s != "" || err != nil) {
			t.Errorf("the message is %q now, and the error %v", s, err)
		}
	})
}

func TestNotifiedDistinguishesShutdownFromLoss(t *testing.T) {
	for state, want := range map[sctp.SCTPState]error{
		sctp.SCTP_COMM_UP: nil, sctp.SCTP_SHUTDOWN_COMP: io.EOF, sctp.SCTP_COMM_LOST: unix.ECONNRESET, sctp.SCTP_RESTART: unix.ECONNRESET,
	} {
		if err := notified(noSocket, notification(sctp.SCTP_ASSOC_CHANGE, state), &forward.Message{}); !errors.Is(err, want) {
			t.Errorf("state %d: %v, not %v", state, err, want)
		}
	}
}
