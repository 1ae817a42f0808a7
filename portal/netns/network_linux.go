package netns

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
)

const (
	tunDevice = "/dev/net/tun"
	tunName   = "usher"
)

// setUpLoopback brings lo up, with the namespace's own addresses.
func setUpLoopback() error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("bringing lo up: %w", err)
	}
	for _, addr := range []netip.Addr{Address, address6} {
		if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: kernel.Alone(addr), Flags: unix.IFA_F_NODAD}); err != nil && addr.Is4() {
			return fmt.Errorf("assigning address %s to lo: %w", addr, err) // IPv6 may be disabled
		}
	}
	return nil
}

// openTun makes the device for other destinations, and the routes to it.
func openTun() (fd int, err error) {
	fd, link, err := kernel.OpenTun(tunName)
	if err != nil {
		return -1, err
	}
	err = netlink.LinkSetMTU(link, MTU)
	for _, addr := range []netip.Addr{Address, address6} {
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: kernel.Everywhere(portal.FamilyOf(addr)), Src: addr.AsSlice()}
		if failed := netlink.RouteAdd(route); addr.Is4() { // IPv6 may be disabled
			err = errors.Join(err, failed)
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
