package proxy

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/trace"
)

// udpListener is a listener for a UDP service port.
type udpListener struct {
	front      *frontEnd
	at         netip.AddrPort
	redirected bool
	targets    atomic.Pointer[[]portal.Target]
	sockets    []*udpSocket
}

// openUDP opens the listener that b asks for.
//
// Behind a redirect, conntrack must be able to tell where each client wanted to
// go. If it is not, there is no listener: one that let everybody in would be a
// way around loadBalancerSourceRanges and traffic policies.
func openUDP(f *frontEnd, b portal.Bind) (listener, error) {
	e := &f.proxy.udp
	if err := e.start(); err != nil {
		return nil, err
	}
	loops := e.choose()
	if b.Redirected {
		for _, loop := range loops {
			if loop.flows != nil {
				continue
			}
			var err error
			if loop.flows, err = portal.OpenFlows(); err != nil {
				return nil, fmt.Errorf("cannot tell which UDP clients come through the portal: %w (the module nf_conntrack_netlink is needed; --portal=address does without)", err)
			}
		}
	}
	fds, err := listenFor(f.proxy, b, func(addr netip.AddrPort) ([]int, error) {
		if addr == b.Addr { // as in openTCP
			if fds := f.proxy.inheritUDP(addr); len(fds) > 0 {
				return fds, nil
			}
		}
		return forward.Sockets(f.proxy.Socket).ListenUDP(addr, len(loops))
	})
	if err != nil {
		return nil, err
	}
	l := &udpListener{front: f, redirected: b.Redirected}
	l.setTargets(b.Targets)
	if l.at, err = forward.LocalAddr(fds[0]); err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("cannot listen on %s: %w", b.Addr, err)
	}
	f.proxy.budget.listeners.Add(1)
	f.proxy.budget.udp.Add(int64(len(fds) - 1))
	for i, fd := range fds {
		l.sockets = append(l.sockets, newUDPSocket(l, loops[i%len(loops)], fd))
	}
	for _, s := range l.sockets {
		_ = s.loop.poller.Do(s.open) // the loops run until Stop, after which nothing is opened
	}
	return l, nil
}

func (l *udpListener) addr() netip.AddrPort { return l.at }

func (l *udpListener) serves(b portal.Bind) bool {
	return fits(b, l.at, l.redirected)
}

func (l *udpListener) setTargets(targets []portal.Target) { l.targets.Store(&targets) }

// endpointsChanged makes the loops look at the new view soon, also at sessions
// whose clients are silent. A datagram that comes before that looks itself.
func (l *udpListener) endpointsChanged() {
	for _, s := range l.sockets {
		_ = s.loop.poller.Do(s.refresh)
	}
}

// abandon makes all sockets abandon an endpoint that has refused a client,
// soon.
func (l *udpListener) abandon(refused *balance.State) {
	for _, s := range l.sockets {
		_ = s.loop.poller.Do(func() { s.abandon(refused) })
	}
}

// close ends the sessions and closes the sockets. It is called with Proxy.mu.
func (l *udpListener) close() {
	l.front.proxy.budget.listeners.Add(-1)
	l.front.proxy.budget.udp.Add(-int64(len(l.sockets) - 1))
	if l.front.proxy.handedOver {
		l.retire()
		return
	}
	end := trace.Withdrawn
	if l.front.proxy.stopped {
		end = trace.Drained
	}
	var closed sync.WaitGroup
	for _, s := range l.sockets {
		closed.Add(1)
		err := s.loop.poller.Do(func() {
			s.close(end)
			closed.Done()
		})
		if err != nil {
			closed.Done()
		}
	}
	closed.Wait()
}

// vipOf returns the VIP that a client meant which sent to original, or whose
// datagrams came to this listener without a redirect.
func (l *udpListener) vipOf(v *view, original netip.AddrPort) (*config.VIP, bool) {
	if l.redirected {
		return v.vip(original)
	}
	return v.vipOf((*l.targets.Load())[0])
}
