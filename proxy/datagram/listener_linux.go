package datagram

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/outcome"
)

// listener is a listener for a UDP service port: one socket, on one loop. Several sockets that share the port
// (SO_REUSEPORT) could be spread over loops. But then any process of the same user could join them, or bind a more
// specific address, and receive datagrams.
type listener struct {
	frontend.Place
	server *Server
	front  *frontend.FrontEnd
	socket *socket
}

// Listen opens the listener that b describes. The listener receives at once or, if its socket is inherited, from
// InheritRest on. Calls must be serialized. The caller must have checked that the budget admits a listener; Listen
// counts it.
//
// Behind a redirect, conntrack must provide each client's original destination. If it does not, Listen fails: a
// listener that admits every client would bypass loadBalancerSourceRanges and traffic policies.
func (srv *Server) Listen(f *frontend.FrontEnd, b portal.Bind) (_ frontend.Listener, err error) {
	if err := srv.start(); err != nil {
		return nil, err
	}
	lp := slices.MinFunc(srv.loops, func(a, b *loop) int { return cmp.Compare(a.listeners, b.listeners) })
	if b.Redirected && lp.flows == nil {
		if lp.flows, err = kernel.OpenFlows(); err != nil {
			return nil, fmt.Errorf("cannot determine which UDP clients come through the portal: %w (load the module nf_conntrack_netlink, or use --portal=address)", err)
		}
	}
	fd, at, inherited, err := f.OpenSocket(b, forward.Sockets.ListenUDP)
	if err != nil {
		return nil, err
	}
	l := &listener{server: srv, front: f}
	l.SetBound(b, at)
	f.Budget.CountListener(f.ID().Namespace, l.At.Port(), true, 1)
	lp.listeners++
	l.socket = newSocket(l, lp, fd)
	l.socket.inherited = inherited
	if srv.listeners[l] = inherited; !inherited {
		l.do(l.socket.open)
	}
	l.adopt()
	return l, nil
}

// do makes the loop call f, which uses the socket. The loops run until Stop, when no listener is open.
func (l *listener) do(f func()) { _ = l.socket.loop.poller.Do(f) }

// ViewReplaced makes the loop apply the new view soon, even if no datagram arrives. A datagram that arrives earlier has
// the same effect.
func (l *listener) ViewReplaced() { l.do(l.socket.refresh) }

// Close ends the sessions and closes the socket. After a handover it does so later: see Server.Retired.
func (l *listener) Close(why frontend.Closing) {
	delete(l.server.listeners, l)
	l.front.Budget.CountListener(l.front.ID().Namespace, l.At.Port(), true, -1)
	l.socket.loop.listeners--
	end := outcome.VIPRemoved
	switch why {
	case frontend.HandedOver:
		l.retire()
		return
	case frontend.Stopped:
		end = outcome.Drained
	}
	var closed sync.WaitGroup
	closed.Add(1)
	if l.socket.loop.poller.Do(func() { l.socket.close(end, closed.Done) }) != nil {
		closed.Done() // the loop has ended
	}
	closed.Wait()
}
