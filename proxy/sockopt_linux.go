package proxy

import "golang.org/x/sys/unix"

// openFilesLimit returns how many descriptors the process may have.
func openFilesLimit() int64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // POSIX systems' usual default
	}
	return int64(min(limit.Cur, 1<<30))
}

// setMark puts a mark on what a socket sends.
func setMark(fd uintptr, mark uint32) error {
	return unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))
}
