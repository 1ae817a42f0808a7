package kernel

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
)

// Behind returns a function that tells whether the route from this node to an address
// leads over one of the interfaces. It asks the kernel each time: so it is right as
// soon as a route changes, and costs the same with any number of routes, some ten
// microseconds (since Linux 4.14 without the lock under which interfaces and routes
// are changed). What the kernel has no route to is not behind them.
//
// It is for the network namespace of the calling thread, and keeps two sockets
// open for good.
func Behind(i portal.Interfaces) (func(netip.Addr) bool, error) {
	routes, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening the kernel's routing table: %w", err)
	}
	names, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		routes.Close()
		return nil, fmt.Errorf("listing interface names: %w", err)
	}
	return func(addr netip.Addr) bool {
		if zone := addr.Zone(); zone != "" { // a route to a link-local address may lead over any interface
			return i.Has(zone)
		}
		found, err := routes.RouteGet(addr.Unmap().AsSlice())
		if err != nil || len(found) == 0 || found[0].Type != unix.RTN_UNICAST {
			return false
		}
		request, err := unix.NewIfreq("")
		if err != nil {
			return false
		}
		request.SetUint32(uint32(found[0].LinkIndex)) // netdevice(7), SIOCGIFNAME
		return unix.IoctlIfreq(names, unix.SIOCGIFNAME, request) == nil && i.Has(request.Name())
	}, nil
}
