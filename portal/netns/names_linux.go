package netns

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// resolverSockets are the sockets of nss-resolve and nscd, which the C library queries for names. These resolvers do
// not know the names inside; if they do not answer, the library uses /etc/resolv.conf.
var resolverSockets = []string{
	"/run/systemd/resolve/io.systemd.Resolve",
	"/run/nscd/socket",
	"/var/run/nscd/socket",
}

const (
	resolvConfPath = "/etc/resolv.conf"
	keepInterval   = time.Second // for checking that the mounted file is in place
)

// setUpNames makes conf the content of /etc/resolv.conf, also behind a symbolic link, and makes the other resolvers'
// sockets unreachable. It uses mounts that only processes inside see.
func setUpNames(conf string) error {
	// Later mounts outside appear inside too, but not the reverse.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("making mounts private to this namespace: %w", err)
	}
	mounted, err := replaceFile(resolvConfPath, conf, os.TempDir())
	if err != nil {
		return fmt.Errorf("setting up name resolution: %w", err)
	}
	if err := hideResolvers(); err != nil {
		return fmt.Errorf("setting up name resolution: %w", err)
	}
	go keepNames(mounted, conf)
	return nil
}

// hideResolvers makes the sockets of other resolvers unreachable.
func hideResolvers() error {
	for _, socket := range resolverSockets {
		if info, err := os.Stat(socket); err != nil || info.Mode()&os.ModeSocket == 0 {
			continue
		}
		if err := unix.Mount(os.DevNull, socket, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting %s on %s: %w", os.DevNull, socket, err)
		}
	}
	return nil
}

// keepNames repeats mounts that are no longer in place. The kernel removes a mount if a process outside removes the
// file below it, or renames another file to its name.
func keepNames(mounted os.FileInfo, conf string) {
	for range time.Tick(keepInterval) {
		_ = hideResolvers() // the next round tries again
		if now, err := os.Stat(resolvConfPath); err != nil || os.SameFile(now, mounted) {
			continue
		}
		// The command may be using /tmp.
		if again, err := replaceFile(resolvConfPath, conf, "/proc/self/task"); err == nil {
			mounted = again
		}
	}
}

// replaceFile mounts a file with this text on path. The file is in memory, and removed with the mount. While
// replaceFile runs, the content of dir is hidden.
func replaceFile(path, text, dir string) (mounted os.FileInfo, err error) {
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return nil, err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=64k"); err != nil {
		return nil, fmt.Errorf("mounting tmpfs on %s: %w", dir, err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }() // in any case it is removed with the namespace
	file := filepath.Join(dir, filepath.Base(path))
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, err
	}
	if err := unix.Mount(file, path, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("mounting a file on %s: %w", path, err)
	}
	return os.Stat(path)
}
