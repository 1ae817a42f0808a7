package main

import (
	"errors"
	"net"

	"github.com/vishvananda/netlink"
)

// network adds a ground's interfaces to a machine that has none: loopback, and one with an address of each family.
func network() error {
	eth0 := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"}
	err := netlink.LinkAdd(eth0)
	lo, missing := netlink.LinkByName("lo")
	if err := errors.Join(err, missing); err != nil {
		return err
	}
	peer, err := netlink.LinkByName("peer")
	if err != nil {
		return err
	}
	add := func(ip string, bits, of int) error {
		return netlink.AddrAdd(eth0, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(ip), Mask: net.CIDRMask(bits, of)}, Flags: 2 /* nodad */})
	}
	_ = add("fd00:244::2", 64, 128) // without IPv6 there is no such address
	return errors.Join(netlink.LinkSetUp(lo), netlink.LinkSetUp(eth0), netlink.LinkSetUp(peer), add("10.244.0.2", 24, 32))
}
