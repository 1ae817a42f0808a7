package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/usherproxy/usher/config"
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
	dial: func(ctx context.Context, p *Proxy, client conn, from netip.Addr, to *config.Endpoint) (endpointConn, error) {
		streams := client.(*sctp.Conn).Streams()
		return sctp.Dial(ctx, p.Portal.Mark(), from, to.Addr, sctp.Streams{In: streams.Out, Out: streams.In})
	},
	forward: func(client conn, endpoint endpointConn, limits *forward.Limits, done func(forward.Result)) forward.Flow {
		return forward.CopyMessages(client.(*sctp.Conn), endpoint.(*sctp.Conn), *limits, done)
	},
}

// sctpListener is a listener for an SCTP service port.
type sctpListener struct {
	*sctp.Listener
	acceptor

	closing sync.Once
	closed  chan struct{} // the accept loop has ended
}

// openSCTP opens the listener that b asks for and starts to accept.
func openSCTP(f *frontEnd, b portal.Bind) (*sctpListener, error) {
	if f.proxy.Socket != nil {
		return nil, fmt.Errorf("%w in the network namespace of a command: TCP and UDP are", errNoSCTP)
	}
	if err := f.proxy.SCTP.allowed(); err != nil {
		return nil, err
	}
	s, err := listenFor(f.proxy, b, sctp.Listen)
	switch {
	case errors.Is(err, syscall.EPROTONOSUPPORT):
		return nil, fmt.Errorf("%w: this node's kernel does not have it", errNoSCTP)
	case err != nil:
		return nil, err
	}
	l := &sctpListener{Listener: s, acceptor: acceptor{front: f, carrier: &sctpCarrier, redirected: b.Redirected, at: s.LocalAddr().AddrPort()}, closed: make(chan struct{})}
	l.setTargets(b.Targets)
	f.proxy.budget.listeners.Add(1)
	go l.run()
	return l, nil
}

// handOver: the successor opens a socket of its own.
func (l *sctpListener) handOver() []handover.Socket { return nil }

// run accepts until l is closed.
func (l *sctpListener) run() {
	defer l.front.proxy.budget.listeners.Add(-1)
	defer close(l.closed)
	l.acceptLoop(func() (conn, net.Addr, error) {
		client, err := l.Accept()
		if err != nil {
			return nil, nil, err
		}
		return client, client.RemoteAddr(), nil
	})
}

func (l *sctpListener) addr() netip.AddrPort { return l.LocalAddr().AddrPort() }

func (l *sctpListener) serves(b portal.Bind) bool {
	return fits(b, l.addr(), l.redirected)
}

// close stops accepting and returns when the accept loop has ended.
// Associations that wait to be accepted are aborted.
func (l *sctpListener) close() {
	l.closing.Do(func() { l.Listener.Close() })
	<-l.closed
}
