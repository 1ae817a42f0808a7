package datagram

import (
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/trace"
)

// listener is a listener for a UDP service port.
type listener struct {
	frontend.Place
	server  *Server
	front   *frontend.FrontEnd
	sockets []*socket
}

// Listen opens the listener that b asks for and starts to receive. One goroutine at a time
// may call it, when the budget has room for a listener, of which it takes it.
//
// Behind a redirect, conntrack must be able to tell where each client wanted to
// go. If it is not, there is no listener: one that let everybody in would be a
// way around loadBalancerSourceRanges and traffic policies.
func (srv *Server) Listen(f *frontend.FrontEnd, b portal.Bind) (frontend.Listener, error) {
	if err := srv.start(); err != nil {
		return nil, err
	}
	loops := srv.choose()
	if b.Redirected {
		for _, lp := range loops {
			if lp.flows != nil {
				continue
			}
			var err error
			if lp.flows, err = kernel.OpenFlows(); err != nil {
				return nil, fmt.Errorf("cannot tell which UDP clients come through the portal: %w (the module nf_conntrack_netlink is needed; --portal=address does without)", err)
			}
		}
	}
	inherited := false
	fds, err := frontend.Listen(f.Node, b, func(addr netip.AddrPort) ([]int, error) {
		if addr == b.Addr { // what is inherited at others is for other front ends
			if fds := inherit(f.Node, addr, b.Namespace != nil); len(fds) > 0 {
				inherited = true
				return fds, nil
			}
		}
		return forward.Sockets(f.Sockets(b)).ListenUDP(addr, len(loops))
	})
	if err != nil {
		return nil, err
	}
	l := &listener{server: srv, front: f}
	l.Redirected, l.Namespace = b.Redirected, b.Namespace
	l.SetTargets(b.Targets)
	if l.At, err = forward.LocalAddr(fds[0]); err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("cannot listen on %s: %w", b.Addr, err)
	}
	f.Budget.Listeners.Add(1)
	f.Budget.UDP.Add(int64(len(fds) - 1))
	for i, fd := range fds {
		l.sockets = append(l.sockets, newSocket(l, loops[i%len(loops)], fd))
	}
	if srv.listeners[l] = inherited; !inherited {
		l.open()
	}
	l.adopt()
	return l, nil
}

// open begins to receive.
func (l *listener) open() {
	for _, sk := range l.sockets {
		_ = sk.loop.poller.Do(sk.open) // the loops run until Stop, after which nothing is opened
	}
}

// EndpointsChanged makes the loops look at the new view soon, also at sessions
// whose clients are silent. A datagram that comes before that looks itself.
func (l *listener) EndpointsChanged() {
	for _, sk := range l.sockets {
		_ = sk.loop.poller.Do(sk.refresh)
	}
}

// abandon makes all sockets abandon an endpoint that has refused a client,
// soon.
func (l *listener) abandon(refused *balance.State) {
	for _, sk := range l.sockets {
		_ = sk.loop.poller.Do(func() { sk.abandon(refused) })
	}
}

// Close ends the sessions and closes the sockets. After a handover it does so later: see
// Server.Retired.
func (l *listener) Close(why frontend.Closing) {
	delete(l.server.listeners, l)
	l.front.Budget.Listeners.Add(-1)
	l.front.Budget.UDP.Add(-int64(len(l.sockets) - 1))
	end := trace.Withdrawn
	switch why {
	case frontend.HandedOver:
		l.retire()
		return
	case frontend.Stopped:
		end = trace.Drained
	}
	var closed sync.WaitGroup
	for _, sk := range l.sockets {
		sk.loop.poller.Go(&closed, func() { sk.close(end) })
	}
	closed.Wait()
}
