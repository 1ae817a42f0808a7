package address

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
)

// space is a dedicated network namespace for VIPs. All packets that come in there are for it, so a VIP needs no
// configuration inside, and the kernel refuses packets without a listener.
//
// It has no name and no file. It exists as long as a process has its descriptor or a socket in it. When the last of
// these is closed, for any reason, the kernel removes it with its link and the routes over that.
type space struct {
	file   *os.File
	handle *netlink.Handle
	jobs   chan func()
}

// makeSpace makes a space with a new network namespace.
func makeSpace() (*space, error) {
	s, err := enter(func() (*os.File, error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			if has, err2 := kernel.Capabilities(); err2 == nil && has&(1<<unix.CAP_SYS_ADMIN) == 0 {
				err = fmt.Errorf("%w: CAP_SYS_ADMIN is missing", err)
			}
			return nil, fmt.Errorf("creating a network namespace: %w", err)
		}
		return os.Open("/proc/thread-self/ns/net")
	})
	if err != nil {
		return nil, err
	}
	if err := s.setUp(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// openSpace returns the space for the descriptor in file, and closes it on error.
func openSpace(file *os.File) (*space, error) {
	s, err := enter(func() (*os.File, error) {
		return file, unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
	})
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("entering the network namespace of another usher process: %w", err)
	}
	return s, nil
}

// enter starts a thread that calls in, which moves the thread into a network namespace and returns the namespace's
// descriptor. enter returns the space of that namespace.
func enter(in func() (*os.File, error)) (*space, error) {
	s := &space{jobs: make(chan func())}
	entered := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		var err error
		if s.file, err = in(); err == nil {
			s.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		}
		entered <- err
		for job := range s.jobs {
			job()
		}
	}()
	err := <-entered
	if err != nil {
		close(s.jobs)
	}
	return s, err
}

// close releases the space. Sockets in it stay open.
func (s *space) close() {
	close(s.jobs)
	s.handle.Close()
	s.file.Close()
}

// do calls f on the space's thread, and waits for it.
func (s *space) do(f func()) {
	done := make(chan struct{})
	s.jobs <- func() {
		defer close(done)
		f()
	}
	<-done
}

func (s *space) Socket(domain, kind, protocol int) (fd int, err error) {
	s.do(func() { fd, err = unix.Socket(domain, kind|unix.SOCK_CLOEXEC, protocol) })
	return fd, err
}

// outwards is the routing table for packets that the space sends.
const outwards = 117

// icmpSource is the source of ICMPv6 errors: the kernel does not use an address that is local only by a route.
var icmpSource = netip.MustParseAddr("fd75:7368:6572::2")

// setUp brings lo up, and makes packets that the space itself sends use the table outwards; all others are for the
// space. To that end, the rule for the local table, which is the first by default, moves behind a rule for sent
// packets.
func (s *space) setUp() error {
	lo, err := s.handle.LinkByName("lo")
	if err == nil {
		err = s.handle.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("bringing lo up in the namespace: %w", err)
	}
	// Without IPv6 there are no IPv6 VIPs: see link.furnish.
	_ = s.handle.AddrAdd(lo, &netlink.Addr{IPNet: kernel.Alone(icmpSource), Flags: unix.IFA_F_NODAD})
	for _, family := range portal.Families {
		out, local, first := netlink.NewRule(), netlink.NewRule(), netlink.NewRule()
		out.Family, out.Priority, out.IifName, out.Table = kernel.NetlinkFamily(family), 1, "lo", outwards
		local.Family, local.Priority, local.Table = kernel.NetlinkFamily(family), 2, unix.RT_TABLE_LOCAL
		first.Family, first.Priority, first.Table = kernel.NetlinkFamily(family), 0, unix.RT_TABLE_LOCAL
		err := s.handle.RuleAdd(out)
		if err == nil {
			err = s.handle.RuleAdd(local)
		}
		if err == nil {
			err = s.handle.RuleDel(first)
		}
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = fmt.Errorf("%w: this kernel has no policy routing (ip rule)", err)
		}
		if err != nil && !family.Is6() {
			return fmt.Errorf("creating routing rules in the namespace: %w", err)
		}
	}
	return nil
}
