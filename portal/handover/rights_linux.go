package handover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// A challenge is a socket by which a process proves that it may change this network namespace. Only with CAP_NET_ADMIN
// in the user namespace that owns it can a process set SO_TXTIME on a socket to CLOCK_TAI (since Linux 4.19; see
// sock_setsockopt in net/core/sock.c). So the verifier makes a challenge, sends it to the other side to sign, and reads
// the option. The kernel decides; the user and process IDs that the two sides see of each other do not matter.
//
// A process without the capability could forward the challenge of one usher process to another one to sign. So a
// challenge is valid for one connection: its name begins with the name of the successor's end, which is unique
// (abstract namespace of unix(7)). A process signs only challenges for the connection on which it receives them.
type challenge int

// The second part of a challenge's name says which side has to sign it.
const (
	bySuccessor = "/successor/"
	byHolder    = "/holder/"
)

// newChallenge makes a challenge for the connection whose successor's end is named connection. by is the signing side.
func newChallenge(connection, by string) (challenge, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: connection + by + random()}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return challenge(fd), nil
}

func (c challenge) close() { closeFD(int(c)) }

// sign signs a challenge made by the other side of a connection.
func (c challenge) sign(connection, by string) error {
	at, err := unix.Getsockname(int(c))
	if err != nil {
		return err
	}
	name, ok := at.(*unix.SockaddrUnix)
	if !ok || !strings.HasPrefix(name.Name, connection+by) {
		return errors.New("received a challenge that is not for this connection")
	}
	// struct sock_txtime: clockid and flags, 32 bits each.
	var value [8]byte
	binary.NativeEndian.PutUint32(value[:], unix.CLOCK_TAI)
	if err := unix.SetsockoptString(int(c), unix.SOL_SOCKET, unix.SO_TXTIME, string(value[:])); err != nil {
		return fmt.Errorf("proving that this process has CAP_NET_ADMIN (SO_TXTIME, Linux 4.19): %w", err)
	}
	return nil
}

// signed reports whether the receiver of the challenge has proved its capability.
func (c challenge) signed() (bool, error) {
	set, err := unix.GetsockoptUint64(int(c), unix.SOL_SOCKET, unix.SO_TXTIME)
	if err != nil {
		return false, fmt.Errorf("checking whether the peer has CAP_NET_ADMIN (SO_TXTIME, Linux 4.19): %w", err)
	}
	var value [8]byte
	binary.NativeEndian.PutUint64(value[:], set)
	return binary.NativeEndian.Uint32(value[:]) == unix.CLOCK_TAI, nil
}
