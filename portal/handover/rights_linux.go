package handover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// A deed is a socket that shows whether somebody has the right to change this network
// namespace. Only who has CAP_NET_ADMIN in the user namespace that owns it may make
// SO_TXTIME on a socket count in CLOCK_TAI (since Linux 4.19; see sock_setsockopt in
// net/core/sock.c). So who wants to know makes a deed, gives it to the other side to
// sign, and looks: it is the kernel who answers, without regard to what the two see
// of each other's user and process numbers.
//
// A stranger between two ushers could have one sign what the other asks of him. So a
// deed is for one connection: its name begins with that of the successor's end,
// which nobody else can have (names in unix(7)'s abstract namespace are unique), and
// nobody signs another.
type deed int

// The second part of a deed's name says who has to sign it.
const (
	bySuccessor = "/successor/"
	byHolder    = "/holder/"
)

// newDeed makes a deed for the connection whose successor's end has a name.
func newDeed(connection, by string) (deed, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: connection + by + random()}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return deed(fd), nil
}

func (d deed) close() { unix.Close(int(d)) }

// sign signs a deed that the other side of a connection has made.
func (d deed) sign(connection, by string) error {
	at, err := unix.Getsockname(int(d))
	if err != nil {
		return err
	}
	name, ok := at.(*unix.SockaddrUnix)
	if !ok || !strings.HasPrefix(name.Name, connection+by) {
		return errors.New("it gave something to sign that is not for this connection")
	}
	// struct sock_txtime: clockid and flags, 32 bits each.
	var value [8]byte
	binary.NativeEndian.PutUint32(value[:], unix.CLOCK_TAI)
	if err := unix.SetsockoptString(int(d), unix.SOL_SOCKET, unix.SO_TXTIME, string(value[:])); err != nil {
		return fmt.Errorf("showing that this process has CAP_NET_ADMIN: %w", err)
	}
	return nil
}

// signed tells whether who was given the deed has the right.
func (d deed) signed() (bool, error) {
	set, err := unix.GetsockoptUint64(int(d), unix.SOL_SOCKET, unix.SO_TXTIME)
	if err != nil {
		return false, fmt.Errorf("looking whether the other side has CAP_NET_ADMIN: %w", err)
	}
	var value [8]byte
	binary.NativeEndian.PutUint64(value[:], set)
	return binary.NativeEndian.Uint32(value[:]) == unix.CLOCK_TAI, nil
}
