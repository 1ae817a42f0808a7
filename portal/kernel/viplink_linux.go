package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// VIPLink is the interface that has VIPs as addresses where a local route does not make an address local, as in gVisor.
// All addresses on it are usher's: gVisor stores neither a label nor a protocol with an address (IFA_LABEL, IFA_PROTO)
// that could mark those on lo. It is a bridge without ports, the only kind of interface without a peer that gVisor has.
const VIPLink = "usher-vips"

// vipLinkAddr distinguishes usher's interface from another one of that name; gVisor does not report kinds.
var vipLinkAddr = net.HardwareAddr{2, 'u', 's', 'h', 'e', 3}

// ChooseAddresses makes Add and Delete use addresses of VIPLink if withoutRoutes is set, or if a local route does not
// make addr local. addr is an unused IPv4 address. ChooseAddresses tests each method that it tries by doing and undoing
// it.
func (r *Routes) ChooseAddresses(addr netip.Addr, withoutRoutes bool) error {
	if !withoutRoutes {
		err := r.Add(addr)
		left := errors.Is(err, unix.EEXIST) // by a killed process
		if err != nil && !left {
			return err
		}
		local := canBind(addr)
		if local && left {
			return nil
		}
		if err := r.Delete(addr); err != nil || local {
			return err
		}
	}
	r.onVIPLink = true
	before, err := r.vipLink()
	if err == nil {
		err = r.Add(addr)
	}
	if err == nil && !canBind(addr) {
		err = fmt.Errorf("local route and address on interface %s both failed to make %s local to this node", VIPLink, addr)
	}
	if before != nil {
		return errors.Join(err, r.Delete(addr))
	}
	_, removeErr := r.removeVIPLink()
	return errors.Join(err, removeErr)
}

// OnVIPLink reports whether Add adds addresses to VIPLink instead of routes.
func (r *Routes) OnVIPLink() bool { return r.onVIPLink }

func canBind(addr netip.Addr) bool {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// isListed reports whether an interface has addr. Binding a socket to it proves less: gVisor keeps a removed address,
// unlisted, until the last connection to it has left TIME-WAIT.
func (r *Routes) isListed(addr netip.Addr) bool {
	all, err := r.handle.AddrList(nil, netlink.FAMILY_ALL)
	return err == nil && slices.ContainsFunc(all, func(a netlink.Addr) bool { return prefixOf(a.IPNet).Addr() == addr })
}

// vipLink returns usher's interface, or nil if there is none.
func (r *Routes) vipLink() (netlink.Link, error) {
	link, err := r.handle.LinkByName(VIPLink)
	switch {
	case errors.As(err, &netlink.LinkNotFoundError{}):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("looking up interface %s: %w", VIPLink, err)
	case link.Attrs().HardwareAddr.String() != vipLinkAddr.String():
		return nil, nil
	}
	return link, nil
}

// addAddress adds an address to VIPLink, which it makes if there is none.
func (r *Routes) addAddress(addr netip.Addr) error {
	link, err := r.vipLink()
	if err == nil && link == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = VIPLink, vipLinkAddr
		link = &netlink.Bridge{LinkAttrs: attrs}
		if err = r.handle.LinkAdd(link); errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("an interface %s exists that was not created by usher", VIPLink)
		}
		if err == nil {
			err = r.handle.LinkSetUp(link)
		}
	}
	if err == nil {
		err = r.handle.AddrAdd(link, vipAddress(addr))
	}
	if err != nil {
		return fmt.Errorf("adding address %s to interface %s: %w", addr, VIPLink, err)
	}
	return nil
}

func (r *Routes) deleteAddress(addr netip.Addr) error {
	link, err := r.vipLink()
	if err == nil && link != nil {
		err = r.handle.AddrDel(link, vipAddress(addr))
	}
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("removing address %s from interface %s: %w", addr, VIPLink, err)
	}
	return nil
}

func vipAddress(addr netip.Addr) *netlink.Addr {
	return &netlink.Addr{IPNet: Alone(addr), Flags: unix.IFA_F_NODAD}
}

// vipLinkAddresses returns the addresses of VIPLink, none if there is no such interface.
func (r *Routes) vipLinkAddresses() (addrs []netip.Addr, err error) {
	link, err := r.vipLink()
	if err != nil || link == nil {
		return nil, err
	}
	all, err := r.handle.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("listing addresses of interface %s: %w", VIPLink, err)
	}
	for _, a := range all {
		if addr := prefixOf(a.IPNet).Addr(); !addr.IsLinkLocalUnicast() { // link-local: assigned by the kernel
			addrs = append(addrs, addr)
		}
	}
	return addrs, nil
}

// RemoveVIPLink removes the VIPLink of any process, and returns a description of it.
func RemoveVIPLink() (removed []string, err error) {
	r, err := OpenRoutes()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return r.removeVIPLink()
}

func (r *Routes) removeVIPLink() (removed []string, err error) {
	link, err := r.vipLink()
	if err != nil || link == nil {
		return nil, err
	}
	addrs, err := r.vipLinkAddresses()
	if err == nil {
		err = r.handle.LinkDel(link)
	}
	if err != nil {
		return nil, fmt.Errorf("removing interface %s: %w", VIPLink, err)
	}
	return []string{fmt.Sprintf("link: %s, with %d addresses", VIPLink, len(addrs))}, nil
}
