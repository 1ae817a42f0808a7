//go:build !386

package stream

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/sctp"
)

// allowed returns nil if an SCTP socket may be opened now.
func (m SCTPMode) allowed() error {
	switch {
	case m == SCTPOff:
		return fmt.Errorf("%w: --sctp=off", ErrSCTPOff)
	case m == SCTPAuto && !sctp.InUse():
		return fmt.Errorf("%w: the kernel's SCTP module is not loaded; use --sctp=on or modprobe sctp", ErrSCTPOff)
	}
	return nil
}

// sctpClient is a client's association.
type sctpClient struct{ *sctp.Conn }

func (c sctpClient) localAddr() netip.AddrPort { return c.LocalAddr() }

func (c sctpClient) originalDst(netip.Addr) (netip.AddrPort, error) {
	return kernel.OriginalDst(c.Conn)
}

// serve serves the association. The endpoint's association gets as many streams in each direction as the client's.
func (c sctpClient) serve(a *acceptor, connection *Conn) {
	g := &goroutine{Conn: connection} // SCTP has no PROXY protocol header
	g.dial = func(ctx context.Context, _ *frontend.View, _ netip.AddrPort, to *config.Endpoint) (forwarder, error) {
		streams := c.Streams()
		var endpoint *sctp.Conn
		err := g.withClient(ctx, errClientReset, forward.WaitReset, func(ctx context.Context) (err error) {
			endpoint, err = sctp.Dial(ctx, a.front.Portal.Mark(), to.Addr, sctp.Streams{In: streams.Out, Out: streams.In})
			return err
		})
		if err != nil {
			return nil, err
		}
		return func(limits *forward.Limits, owner forward.Owner) forward.Flow {
			return forward.CopyMessages(c.Conn, endpoint, *limits, owner)
		}, nil
	}
	connection.start(a, g)
}

// ListenSCTP opens the listener that b describes and starts to accept.
func (s *Server) ListenSCTP(f *frontend.FrontEnd, b portal.Bind) (frontend.Listener, error) {
	if f.Socket != nil {
		return nil, fmt.Errorf("%w in the network namespace of a command; use TCP or UDP", ErrNoSCTP)
	}
	if err := s.SCTP.allowed(); err != nil {
		return nil, err
	}
	fd, at, _, err := f.OpenSocket(b, sctp.Listen)
	switch {
	case errors.Is(err, syscall.EPROTONOSUPPORT):
		return nil, fmt.Errorf("%w: not supported by this node's kernel", ErrNoSCTP)
	case err != nil:
		return nil, err
	}
	opened, err := sctp.NewListener(fd)
	if err != nil {
		return nil, err
	}
	l := s.newListening(f, b, fd, at, opened.Close)
	go l.run(func() error {
		conn, err := opened.Accept()
		if err != nil {
			return err
		}
		client := sctpClient{conn}
		if c := l.accepted(client, conn.RemoteAddr()); c != nil {
			go client.serve(&l.acceptor, c)
		}
		return nil
	})
	return l, nil
}
