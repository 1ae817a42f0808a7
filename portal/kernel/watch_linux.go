package kernel

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
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

// Subscription is a kind of event that the kernel tells about.
type Subscription struct {
	socket  *nl.NetlinkSocket
	matters func(syscall.NetlinkMessage) bool
	known   *Known // to be told of it; may be nil
}

// subscribe opens the socket in the network namespace of the calling thread.
func subscribe(protocol int, matters func(syscall.NetlinkMessage) bool, groups ...uint) (Subscription, error) {
	if err := trySubscribe(protocol, groups); err != nil {
		return Subscription{}, err
	}
	socket, err := nl.Subscribe(protocol, groups...)
	if err != nil {
		return Subscription{}, err
	}
	// So that a large change by others need not be lost; if it is all the same,
	// that is as good as an event.
	socket.SetReceiveBufferSize(1<<20, true)
	return Subscription{socket: socket, matters: matters}, nil
}

// trySubscribe returns the error that nl.Subscribe would fail with. Where bind(2) fails, as in gVisor, that
// closes the descriptor and leaves an os.File of it, whose finalizer closes whatever has the number later.
func trySubscribe(protocol int, groups []uint) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	addr := unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	for _, g := range groups {
		addr.Groups |= 1 << (g - 1)
	}
	return unix.Bind(fd, &addr)
}

// Watch tells of the events that open subscribes to until ctx ends. Then it closes the
// channel. What is opened belongs to the network namespace of the calling thread.
func Watch(ctx context.Context, open ...func() (Subscription, error)) (<-chan struct{}, error) {
	var subscriptions []Subscription
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
		s.known.watch(true)
		go func() {
			defer func() { s.known.watch(false); ended <- struct{}{} }()
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
func (s Subscription) receive(events chan<- struct{}) {
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
			s.known.Doubt()
			select {
			case events <- struct{}{}:
			default:
			}
		}
	}
}

// knownFor is after how long what is known is read again all the same: somebody may have changed
// what the kernel's events were not asked for. To read what is there for 10,000 Services takes a
// tenth of a second.
const knownFor = 2 * time.Minute

// Known tells whether what was read of the kernel's state still holds. Where that tells
// of each change by others it does until then, or for knownFor; elsewhere, and as with the
// zero Known before Watch, it never does. Doubtful is for one goroutine at a time.
type Known struct {
	watched, changed atomic.Bool
	until            time.Time
}

// By returns open for Watch, with events after which k is in doubt.
func (k *Known) By(open func() (Subscription, error)) func() (Subscription, error) {
	return func() (Subscription, error) {
		s, err := open()
		s.known = k
		return s, err
	}
}

// Doubtful reports whether to read the state, which who calls it then does.
func (k *Known) Doubtful(now time.Time) bool {
	if k.watched.Load() && !k.changed.Load() && now.Before(k.until) {
		return false
	}
	k.changed.Store(false) // before it is read: what changes meanwhile is not known
	k.until = now.Add(knownFor)
	return true
}

// Doubt makes it doubtful. k may be nil.
func (k *Known) Doubt() {
	if k != nil {
		k.changed.Store(true)
	}
}

// watch notes whether the kernel tells of changes from now on. Of earlier ones it did not.
func (k *Known) watch(on bool) {
	if k.Doubt(); k != nil {
		k.watched.Store(on)
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

// RouteEvents reports changes of local routes, and of those by which portals lead
// elsewhere; of one for a network, with its first address.
func RouteEvents(matters func(addr netip.Addr, gone, ours bool) bool) (Subscription, error) {
	return subscribe(unix.NETLINK_ROUTE, func(m syscall.NetlinkMessage) bool {
		if m.Header.Type != unix.RTM_DELROUTE && m.Header.Type != unix.RTM_NEWROUTE {
			return false
		}
		if len(m.Data) < unix.SizeofRtMsg {
			return false
		}
		message := nl.DeserializeRtMsg(m.Data)
		ours := message.Protocol == RouteProtocol
		if message.Type != unix.RTN_LOCAL && !(ours && (message.Type == unix.RTN_UNICAST || message.Type == unix.RTN_PROHIBIT)) {
			return false
		}
		attributes, err := nl.ParseRouteAttr(m.Data[unix.SizeofRtMsg:])
		if err != nil {
			return true
		}
		for _, a := range attributes {
			if a.Attr.Type == unix.RTA_DST {
				addr, ok := netip.AddrFromSlice(a.Value)
				return ok && matters(addr, m.Header.Type == unix.RTM_DELROUTE, ours)
			}
		}
		return false
	}, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
}

// LinkEvents tells when a link of that name is taken out, or is down.
func LinkEvents(name string) (Subscription, error) {
	return subscribe(unix.NETLINK_ROUTE, func(m syscall.NetlinkMessage) bool {
		if m.Header.Type != unix.RTM_DELLINK && m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < unix.SizeofIfInfomsg {
			return false
		}
		message := nl.DeserializeIfInfomsg(m.Data)
		attributes, err := nl.ParseRouteAttr(m.Data[unix.SizeofIfInfomsg:])
		return err != nil || slices.ContainsFunc(attributes, func(a syscall.NetlinkRouteAttr) bool {
			lost := m.Header.Type == unix.RTM_DELLINK || message.Flags&unix.IFF_UP == 0
			return lost && a.Attr.Type == unix.IFLA_IFNAME && string(bytes.TrimRight(a.Value, "\x00")) == name
		})
	}, unix.RTNLGRP_LINK)
}
