package main

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Addresses on every stage.
var (
	vip      = netip.MustParseAddr("10.96.0.10")  // clients connect to this address
	endpoint = netip.MustParseAddr("10.244.0.11") // the endpoint has this address and the nine that follow
	node     = netip.MustParseAddr("192.0.2.1")   // clients connect from this address
)

// endpoints is the number of addresses of the endpoint.
const endpoints = 10

// stage is a network namespace in which clients, one peer and the endpoint run on loopback. Each measurement has a new
// one, so that it does not inherit sockets in TIME-WAIT or conntrack entries.
//
// The namespace exists as long as its thread or a process in it.
type stage struct {
	jobs chan func()
}

func newStage(congestion string) (*stage, error) {
	s := &stage{jobs: make(chan func())}
	ready := make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine. The processes that it started then end, too: see
		// (*stage).start.
		runtime.LockOSThread()
		handle, err := netns.New()
		if err != nil {
			ready <- fmt.Errorf("making a network namespace: %w", err)
			return
		}
		handle.Close()
		ready <- furnish(congestion)
		for job := range s.jobs {
			job()
		}
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	return s, nil
}

// close ends the stage's thread. Processes on it must have been stopped.
func (s *stage) close() { close(s.jobs) }

// do runs f on the stage's thread.
func (s *stage) do(f func() error) error {
	done := make(chan error, 1)
	s.jobs <- func() { done <- f() }
	return <-done
}

// furnish sets up the namespace of this thread, with the given TCP congestion control.
func furnish(congestion string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	for _, a := range append(following(endpoint, endpoints), node) {
		if err := addAddress(lo, a); err != nil {
			return err
		}
	}
	// As on a node: a route to VIPs, so that rules in OUTPUT apply to them.
	everywhere, err := netlink.ParseIPNet("0.0.0.0/0")
	if err != nil {
		return err
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: everywhere, Src: node.AsSlice()}); err != nil {
		return fmt.Errorf("default route: %w", err)
	}
	for file, value := range map[string]string{
		// Enough ports for connections in TIME-WAIT, on either side of the proxy.
		"ipv4/ip_local_port_range":    "10240 65535",
		"ipv4/tcp_tw_reuse":           "1",
		"core/somaxconn":              "4096",
		"ipv4/tcp_congestion_control": congestion, // see -congestion
	} {
		if err := os.WriteFile("/proc/sys/net/"+file, []byte(value), 0); err != nil {
			return fmt.Errorf("setting net/%s to %q: %w", file, value, err)
		}
	}
	return nil
}

// following returns n addresses, starting with first.
func following(first netip.Addr, n int) (all []netip.Addr) {
	for range n {
		all = append(all, first)
		first = first.Next()
	}
	return all
}

func addAddress(lo netlink.Link, a netip.Addr) error {
	if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice())}); err != nil {
		return fmt.Errorf("address %s: %w", a, err)
	}
	return nil
}

// own assigns the VIP to the stage, for programs that listen on it.
func (s *stage) own(a netip.Addr) error {
	return s.do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return addAddress(lo, a)
	})
}
