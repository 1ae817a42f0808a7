package demo

import (
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// hold protects a folder from removeOrphans as long as this process lives, or until the file is
// closed. It returns nil if another process holds it, or if this cannot be determined.
func hold(dir string) *os.File {
	f, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		f.Close()
		return nil
	}
	return f
}

// removeOrphans removes the folders of this user's demos that were killed. A new folder
// may not be held yet.
func removeOrphans() {
	found, _ := filepath.Glob(filepath.Join(os.TempDir(), folders+"[0-9]*"))
	for _, dir := range found {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		if held := hold(dir); held != nil {
			os.RemoveAll(dir)
			held.Close()
		}
	}
}
