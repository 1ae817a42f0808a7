package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/sctp"
)

// SCTPMode says whether SCTP Services are served.
//
// The first SCTP socket on a machine makes the kernel load its SCTP, which from
// then on answers every SCTP packet that reaches the machine: what belongs to an
// SCTP implementation of some program's own, which the kernel knows nothing of,
// it answers with an abort. KEP-614 has the story.
type SCTPMode string

// The modes.
const (
	SCTPAuto SCTPMode = "auto" // only where the kernel's SCTP is in use already
	SCTPOn   SCTPMode = "on"   // load it
	SCTPOff  SCTPMode = "off"  // no SCTP socket is ever opened
)

// Why SCTP is not served: it cannot be, or it is not wanted.
var (
	errNoSCTP  = errors.New("SCTP cannot be served")
	errSCTPOff = errors.New("SCTP is not served")
)

// allowed returns nil if an SCTP socket may be opened now.
func (m SCTPMode) allowed() error {
	switch {
	case !sctp.Supported:
		return fmt.Errorf("%w: %w", errNoSCTP, sctp.ErrUnsupported)
	case m == SCTPOff:
		return fmt.Errorf("%w: --sctp=off", errSCTPOff)
	case m == SCTPAuto && !sctp.InUse():
		return fmt.Errorf("%w: the kernel's SCTP is not in use on this node, and usher does not load it unasked (--sctp=on does; so does modprobe sctp)", errSCTPOff)
	}
	return nil
}

// sctpCarrier carries SCTP associations.
var sctpCarrier = carrier{
	originalDst: func(client conn) (netip.AddrPort, error) { return portal.OriginalDst(client.(*sctp.Conn)) },
	// The endpoint is asked for as many streams as the client asked for, and is
	// allowed as many as can be carried back.
	dial: func(ctx context.Context, _ *Proxy, client conn, from netip.Addr, to netip.AddrPort) (endpointConn, error) {
		streams := client.(*sctp.Conn).Streams()
		return sctp.Dial(ctx, from, to, sctp.Streams{In: streams.Out, Out: streams.In})
	},
	forward: func(client conn, endpoint endpointConn, limits *forward.Limits, done func(forward.Result)) forward.Flow {
		return forward.CopyMessages(client.(*sctp.Conn), endpoint.(*sctp.Conn), *limits, done)
	},
}

// sctpListener is a listener for an SCTP service port. It has one socket, or, to
// listen on all addresses of the node, one for each: see sctp.Listen. All but
// the acceptor is guarded by Proxy.mu.
type sctpListener struct {
	acceptor
	at      netip.AddrPort // its address may be the unspecified one
	sockets map[netip.Addr]*sctp.Listener
	loops   sync.WaitGroup
}

// freePortTries is how many ports are tried before it is given up to find one
// that is free on every address of the node.
const freePortTries = 16

// openSCTP opens the listener that b asks for and starts to accept.
func openSCTP(f *frontEnd, b portal.Bind) (*sctpListener, error) {
	if err := f.proxy.SCTP.allowed(); err != nil {
		return nil, err
	}
	l := &sctpListener{
		acceptor: acceptor{front: f, carrier: &sctpCarrier, redirected: b.Redirected},
		at:       b.Addr,
		sockets:  map[netip.Addr]*sctp.Listener{},
	}
	l.setTargets(b.Targets)
	err := l.open()
	for try := 0; err != nil && errors.Is(err, syscall.EADDRINUSE) && (b.Preferred || b.Addr.Port() == 0) && try < freePortTries; try++ {
		l.at = netip.AddrPortFrom(b.Addr.Addr(), 0)
		err = l.open()
	}
	switch {
	case errors.Is(err, syscall.EPROTONOSUPPORT):
		return nil, fmt.Errorf("%w: this node's kernel does not have it", errNoSCTP)
	case err != nil:
		return nil, fmt.Errorf("cannot listen on %s: %w", b.Addr, plainError(err))
	}
	return l, nil
}

// handOver: the successor opens sockets of its own.
func (l *sctpListener) handOver() []handover.Socket { return nil }

// open opens all sockets, or none.
func (l *sctpListener) open() error {
	for _, a := range l.wanted() {
		if err := l.add(a); err != nil {
			l.close()
			return err
		}
	}
	if len(l.sockets) == 0 {
		return syscall.EADDRNOTAVAIL
	}
	return nil
}

// wanted returns the addresses on which there are to be sockets.
func (l *sctpListener) wanted() []netip.Addr {
	if !l.at.Addr().IsUnspecified() {
		return []netip.Addr{l.at.Addr()}
	}
	return nodeAddresses(l.at.Addr().Is6())
}

// add opens the socket for an address. The first decides about the port, if any
// will do.
func (l *sctpListener) add(a netip.Addr) error {
	s, err := sctp.Listen(netip.AddrPortFrom(a, l.at.Port()))
	if err != nil {
		return err
	}
	l.at = netip.AddrPortFrom(l.at.Addr(), s.LocalAddr().AddrPort().Port())
	l.sockets[a] = s
	l.front.proxy.connections.listeners.Add(1)
	l.loops.Go(func() {
		defer l.front.proxy.connections.listeners.Add(-1)
		l.acceptLoop(func() (conn, net.Addr, error) {
			client, err := s.Accept()
			if err != nil {
				return nil, nil, err
			}
			return client, client.RemoteAddr(), nil
		})
	})
	return nil
}

// followAddresses opens sockets for addresses that the node got since, and
// closes those for addresses that it has no more.
func (l *sctpListener) followAddresses() {
	wanted := l.wanted()
	for a, s := range l.sockets {
		if !slices.Contains(wanted, a) {
			s.Close()
			delete(l.sockets, a)
		}
	}
	for _, a := range wanted {
		if l.sockets[a] != nil {
			continue
		}
		if err := l.add(a); err != nil {
			l.front.proxy.Log.WithField("service", l.front.id.String()).WithError(plainError(err)).
				Warnf("An address of this node cannot be listened on: %s", netip.AddrPortFrom(a, l.at.Port()))
		}
	}
}

// followAddresses makes the listeners follow the node's addresses, where they
// have to.
func (p *Proxy) followAddresses() {
	for _, fronts := range p.services {
		for _, f := range fronts {
			for _, l := range f.listeners {
				if s, ok := l.(*sctpListener); ok && s.at.Addr().IsUnspecified() {
					s.followAddresses()
				}
			}
		}
	}
}

// nodeAddresses returns the addresses to which a portal may redirect: those of
// the interfaces that are up.
func nodeAddresses(six bool) []netip.Addr {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil
	}
	var list []netip.Addr
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // it has just gone
		}
		for _, a := range addrs {
			prefix, err := netip.ParsePrefix(a.String())
			if addr := prefix.Addr(); err == nil && addr.Is6() == six && !addr.IsLinkLocalUnicast() && !slices.Contains(list, addr) {
				list = append(list, addr)
			}
		}
	}
	return list
}

func (l *sctpListener) addr() netip.AddrPort { return l.at }

func (l *sctpListener) serves(b portal.Bind) bool {
	return fits(b, l.at, l.redirected)
}

// close stops accepting and returns when the accept loops have ended.
// Associations that wait to be accepted are aborted.
func (l *sctpListener) close() {
	for a, s := range l.sockets {
		s.Close()
		delete(l.sockets, a)
	}
	l.loops.Wait()
}
