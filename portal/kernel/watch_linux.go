package kernel

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A change by another program is reported watchQuiet after the last of several in a row, but at most watchLate after
// the first. After a report, watchRest passes before the next changes are considered: a program that wipes rules all
// the time must not keep usher busy.
const (
	watchQuiet = 50 * time.Millisecond
	watchLate  = 300 * time.Millisecond
	watchRest  = 300 * time.Millisecond
)

// Subscription is a subscription to a kind of kernel event.
type Subscription struct {
	socket  *nl.NetlinkSocket
	matters func(syscall.NetlinkMessage) bool
	known   *Known // put in doubt by each event that matters; may be nil
}

// subscribe opens the socket in the network namespace of the calling thread.
func subscribe(protocol int, matters func(syscall.NetlinkMessage) bool, groups ...int) (Subscription, error) {
	// Without groups: if bind(2) refuses them, as in gVisor, nl.Subscribe closes the descriptor but leaves an os.File
	// of it, whose finalizer later closes any file with the same number.
	socket, err := nl.Subscribe(protocol)
	if err != nil {
		return Subscription{}, err
	}
	for _, g := range groups {
		if err := unix.SetsockoptInt(socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g); err != nil {
			socket.Close()
			return Subscription{}, err
		}
	}
	// A large buffer keeps the events of a large change. If some are lost, the loss counts as an event.
	socket.SetReceiveBufferSize(1<<20, true)
	return Subscription{socket: socket, matters: matters}, nil
}

// Watch reports the events that open subscribes to until ctx ends, and then closes the channel. The subscriptions
// belong to the network namespace of the calling thread.
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

// receive reports each event that matters, until the socket is closed.
func (s Subscription) receive(events chan<- struct{}) {
	for {
		messages, _, err := s.socket.Receive()
		matters := errors.Is(err, unix.ENOBUFS) // messages were lost
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

// knownFor is the time after which known state is read again even without an event: a change may be of a kind that is
// not subscribed. Reading the state for 10,000 Services takes 100 ms.
const knownFor = 2 * time.Minute

// Known records whether state read from the kernel is still valid. With events for all changes by other programs it is
// valid until the next event, at most for knownFor. Without events, and for the zero Known before Watch, it never is.
// Doubtful is not safe for concurrent use.
type Known struct {
	watched, changed atomic.Bool
	until            time.Time
}

// By returns open, for Watch, with a Subscription whose events put k in doubt.
func (k *Known) By(open func() (Subscription, error)) func() (Subscription, error) {
	return func() (Subscription, error) {
		s, err := open()
		s.known = k
		return s, err
	}
}

// Doubtful reports whether the state has to be read. The caller then reads it.
func (k *Known) Doubtful(now time.Time) bool {
	if k.watched.Load() && !k.changed.Load() && now.Before(k.until) {
		return false
	}
	k.changed.Store(false) // before the read: changes during it count as unknown
	k.until = now.Add(knownFor)
	return true
}

// Doubt marks the state as doubtful. k may be nil.
func (k *Known) Doubt() {
	if k != nil {
		k.changed.Store(true)
	}
}

// watch records whether the kernel reports changes from now on. It also doubts the state, since earlier changes were
// not reported.
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

// RouteEvents reports those changes of local routes, and of portals' other routes, for which matters returns true. addr
// is the destination or, for a network, its first address; ours says that a portal made the route.
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
		if message.Type != unix.RTN_LOCAL && !(ours && message.Type == unix.RTN_PROHIBIT) {
			return false
		}
		addr, ok := netip.AddrFromSlice(find(m.Data[unix.SizeofRtMsg:], unix.RTA_DST))
		return ok && matters(addr, m.Header.Type == unix.RTM_DELROUTE, ours)
	}, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
}
