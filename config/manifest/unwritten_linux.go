package manifest

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// unwritten sees to it that nobody has the file open for writing until it is closed. busy
// reports that somebody has. The kernel gives a lease for reading only while nobody has, and
// who comes to write waits for its end; to who owns the file or has CAP_LEASE
// (fcntl(2), F_SETLEASE). Some file systems have none.
func unwritten(f *os.File) (sure, busy bool) {
	raw, err := f.SyscallConn()
	if err != nil {
		return false, false
	}
	var leased error
	if err := raw.Control(func(fd uintptr) { _, leased = unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_RDLCK) }); err != nil {
		return false, false
	}
	return leased == nil, errors.Is(leased, unix.EAGAIN)
}
