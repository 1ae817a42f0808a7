package portal

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A change by others is told watchQuiet after the last of several that follow
// each other, but not later than watchLate after the first, and not more often
// than every watchRest: who wipes rules all the time is not to keep usher busy.
const (
	watchQuiet = 50 * time.Millisecond
	watchLate  = 300 * time.Millisecond
	watchRest  = 300 * time.Millisecond
)

// subscription is a kind of event that the kernel tells about.
type subscription struct {
	socket  *nl.NetlinkSocket
	matters func(syscall.NetlinkMessage) bool
}

// subscribe opens the socket in the network namespace of the calling thread.
func subscribe(protocol int, matters func(syscall.NetlinkMessage) bool, groups ...uint) (subscription, error) {
	socket, err := nl.Subscribe(protocol, groups...)
	if err != nil {
		return subscription{}, err
	}
	// So that a large change by others need not be lost; if it is all the same,
	// that is as good as an event.
	socket.SetReceiveBufferSize(1<<20, true)
	return subscription{socket, matters}, nil
}

// watch tells of the events that open subscribes to until ctx ends. Then it closes the
// channel. What is opened belongs to the network namespace of the calling thread.
func watch(ctx context.Context, open ...func() (subscription, error)) (<-chan struct{}, error) {
	var subscriptions []subscription
	for _, o := range open {
		s, err := o()
		if err != nil {
			for _, s := range subscriptions {
				s.socket.Close()
			}
			return nil, err
		}
		subscriptions = append(subscriptions, s)
	}
	events := make(chan struct{}, 1)
	ended := make(chan struct{})
	for _, s := range subscriptions {
		go func() {
			defer func() { ended <- struct{}{} }()
			s.receive(events)
		}()
	}
	out := make(chan struct{}, 1)
	go func() {
		defer close(out)
		debounce(ctx, events, out)
		for _, s := range subscriptions {
			s.socket.Close()
		}
		for range subscriptions {
			<-ended
		}
	}()
	return out, nil
}

// receive tells of each event that matters, until the socket is closed.
func (s subscription) receive(events chan<- struct{}) {
	for {
		messages, _, err := s.socket.Receive()
		matters := errors.Is(err, unix.ENOBUFS) // some were lost
		if err != nil && !matters {
			return
		}
		for _, m := range messages {
			if matters = matters || s.matters(m); matters {
				break
			}
		}
		if matters {
			select {
			case events <- struct{}{}:
			default:
			}
		}
	}
}

func debounce(ctx context.Context, events <-chan struct{}, out chan<- struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
		}
		late := time.After(watchLate)
	quiet:
		for {
			select {
			case <-ctx.Done():
				return
			case <-events:
			case <-time.After(watchQuiet):
				break quiet
			case <-late:
				break quiet
			}
		}
		select {
		case out <- struct{}{}:
		default:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(watchRest):
		}
	}
}

// routeEvents tells of changes of local routes.
func routeEvents(matters func(addr netip.Addr, gone, ours bool) bool) (subscription, error) {
	return subscribe(unix.NETLINK_ROUTE, func(m syscall.NetlinkMessage) bool {
		if m.Header.Type != unix.RTM_DELROUTE && m.Header.Type != unix.RTM_NEWROUTE {
			return false
		}
		if len(m.Data) < unix.SizeofRtMsg {
			return false
		}
		message := nl.DeserializeRtMsg(m.Data)
		if message.Type != unix.RTN_LOCAL {
			return false
		}
		attributes, err := nl.ParseRouteAttr(m.Data[unix.SizeofRtMsg:])
		if err != nil {
			return true
		}
		for _, a := range attributes {
			if a.Attr.Type == unix.RTA_DST {
				addr, ok := netip.AddrFromSlice(a.Value)
				return ok && matters(addr, m.Header.Type == unix.RTM_DELROUTE, message.Protocol == RouteProtocol)
			}
		}
		return false
	}, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
}

// nftEvents tells of changes by others, for which matters is asked with the table
// and, if it is about a chain or a rule, the chain.
func nftEvents(matters func(table, chain string) bool) (subscription, error) {
	return subscribe(unix.NETLINK_NETFILTER, func(m syscall.NetlinkMessage) bool {
		if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || ownSockets.has(m.Header.Pid) {
			return false
		}
		switch m.Header.Type & 0xff {
		case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE,
			unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET, unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
			return matters(nftString(m.Data, unix.NFTA_TABLE_NAME), "")
		case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
			return matters(nftString(m.Data, unix.NFTA_CHAIN_TABLE), nftString(m.Data, unix.NFTA_CHAIN_NAME))
		case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
			return matters(nftString(m.Data, unix.NFTA_RULE_TABLE), nftString(m.Data, unix.NFTA_RULE_CHAIN))
		}
		return false
	}, unix.NFNLGRP_NFTABLES)
}

// nftString returns a string among the attributes of a message, which come after
// a struct nfgenmsg of four bytes.
func nftString(data []byte, attribute uint16) string {
	const header = 4
	for data = data[min(header, len(data)):]; len(data) >= unix.NLA_HDRLEN; {
		size := int(nl.NativeEndian().Uint16(data))
		if size < unix.NLA_HDRLEN || size > len(data) {
			return ""
		}
		if nl.NativeEndian().Uint16(data[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == attribute {
			text, _, _ := bytes.Cut(data[unix.NLA_HDRLEN:size], []byte{0})
			return string(text)
		}
		data = data[min((size+3)&^3, len(data)):]
	}
	return ""
}
