package budget

import "golang.org/x/sys/unix"

// openFilesLimit returns the maximum number of descriptors of this process.
func openFilesLimit() int64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // POSIX systems' usual default
	}
	return int64(min(limit.Cur, 1<<30))
}
