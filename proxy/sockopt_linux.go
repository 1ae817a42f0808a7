package proxy

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// setListenerOptions sets what accepted connections inherit (see tcp(7)), and
// lets a VIP be bound before it is an address of this node (IP_FREEBIND, ip(7)).
func setListenerOptions(fd uintptr, addr netip.Addr, keepalive time.Duration) error {
	s := int(fd)
	set := func(level, option, value int) func() error {
		return func() error { return unix.SetsockoptInt(s, level, option, value) }
	}
	options := []func() error{
		set(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
		set(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, seconds(keepalive)),
		set(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, seconds(keepaliveInterval)),
		set(unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepaliveProbes),
	}
	if !addr.IsUnspecified() && !addr.IsLoopback() {
		if addr.Is6() {
			options = append(options, set(unix.SOL_IPV6, unix.IPV6_FREEBIND, 1))
		} else {
			options = append(options, set(unix.SOL_IP, unix.IP_FREEBIND, 1))
		}
	}
	for _, option := range options {
		if err := option(); err != nil {
			return err
		}
	}
	return nil
}

// seconds returns d in whole seconds, at least one.
func seconds(d time.Duration) int { return max(1, int(d/time.Second)) }

// openFilesLimit returns how many descriptors the process may have.
func openFilesLimit() int64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // POSIX systems' usual default
	}
	return int64(min(limit.Cur, 1<<30))
}
