package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/forward"
)

// portable carries TCP connections by goroutines: on systems without loops, to
// endpoints that Options.Dial connects to, and for clients that no loop has
// accepted. Its clients are *keptClient.
var portable = carrier{
	originalDst: func(client conn) (netip.AddrPort, error) {
		return portal.OriginalDst(client.(*keptClient).Conn.(*net.TCPConn))
	},
	dial: func(ctx context.Context, p *Proxy, client conn, from netip.Addr, to *config.Endpoint) (endpointConn, error) {
		endpoint, err := p.dial(ctx, from, to)
		if err != nil {
			return nil, err
		}
		return client.(*keptClient).offerTo(endpoint)
	},
	forward: func(client conn, endpoint endpointConn, limits *forward.Limits, done func(forward.Result)) forward.Flow {
		e := endpoint.(begun)
		return begunFlow{e.sent, forward.Copy(client.(*keptClient), e.Conn, *limits, func(r forward.Result) {
			r.ToEndpoint += e.sent
			done(r)
		})}
	},
}

// tcpCarrier returns what carries the connections of TCP listeners.
func (p *Proxy) tcpCarrier() *carrier {
	if p.Dial != nil {
		return &portable
	}
	return &tcp
}

// dial connects to a TCP endpoint.
func (p *Proxy) dial(ctx context.Context, from netip.Addr, to *config.Endpoint) (forward.Conn, error) {
	if p.Dial != nil {
		return p.Dial(ctx, to)
	}
	return dialTCP(ctx, p.Portal.Mark(), p.Keepalive, from, to.Addr)
}

// dialTCP connects to an endpoint, with keepalive.
func dialTCP(ctx context.Context, mark uint32, keepalive time.Duration, from netip.Addr, to netip.AddrPort) (forward.Conn, error) {
	d := net.Dialer{KeepAliveConfig: keepaliveConfig(keepalive)}
	if mark != 0 {
		d.Control = func(_, _ string, c syscall.RawConn) (err error) {
			return errors.Join(c.Control(func(fd uintptr) { err = setMark(fd, mark) }), err)
		}
	}
	if from.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	c, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// DirectDial connects to endpoints as a Proxy without Options.Dial does. Options.Portal
// must be set by then.
func (o *Options) DirectDial(ctx context.Context, to *config.Endpoint) (forward.Conn, error) {
	return dialTCP(ctx, o.Portal.Mark(), o.Keepalive, netip.Addr{}, to.Addr)
}

func keepaliveConfig(idle time.Duration) net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: idle, Interval: keepaliveInterval, Count: keepaliveProbes}
}

// Unconfirmed is a connection of which it is not certain, when it is made, that the
// endpoint is there.
type Unconfirmed interface {
	forward.Conn
	// Confirm waits, for a short time, until that is certain enough. It returns an
	// error if nothing that was written until then has reached the endpoint.
	Confirm() error
}

// keptClient is a client, and what it has sent while no endpoint was confirmed: an
// endpoint may need that to say anything, and if it turns out not to be there, the
// next one gets it.
type keptClient struct {
	forward.Conn
	kept   []byte
	ended  bool  // no more comes after kept
	failed error // reading from the client has failed
}

// maxOffered is how much is read from a client while no endpoint is confirmed. More
// waits in the socket.
const maxOffered = 64 << 10

// begun is a connection to an endpoint to which something was sent already.
type begun struct {
	forward.Conn
	sent int64
}

// offerTo returns endpoint once that is confirmed, and what the client has sent is
// sent to it.
func (k *keptClient) offerTo(endpoint forward.Conn) (endpointConn, error) {
	u, uncertain := endpoint.(Unconfirmed)
	if !uncertain && len(k.kept) == 0 && !k.ended {
		return begun{Conn: endpoint}, nil
	}
	withdraw := k.offer(endpoint)
	var err error
	if uncertain {
		err = u.Confirm()
	}
	withdraw()
	if err != nil {
		endpoint.Close()
		return nil, err
	}
	sent := int64(len(k.kept))
	k.kept = nil
	return begun{endpoint, sent}, nil
}

// offer sends to the endpoint what was kept, and what else comes from the client,
// until withdraw has returned.
func (k *keptClient) offer(to forward.Conn) (withdraw func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.send(to)
	}()
	return func() {
		_ = k.SetReadDeadline(time.Unix(1, 0)) // fails only if the client is gone
		<-done
		_ = k.SetReadDeadline(time.Time{})
	}
}

// send returns when the client is not to be read any more. What to does not take
// is kept; if it is lost, reading from to tells.
func (k *keptClient) send(to forward.Conn) {
	_, err := to.Write(k.kept)
	buf := make([]byte, 4<<10)
	for err == nil && !k.ended && k.failed == nil && len(k.kept) < maxOffered {
		n, readErr := k.Conn.Read(buf[:min(len(buf), maxOffered-len(k.kept))])
		k.kept = append(k.kept, buf[:n]...)
		if n > 0 {
			_, err = to.Write(buf[:n])
		}
		switch {
		case readErr == nil:
		case errors.Is(readErr, io.EOF):
			k.ended = true
		case errors.Is(readErr, os.ErrDeadlineExceeded):
			return
		default:
			k.failed = readErr
		}
	}
	if k.ended {
		_ = to.CloseWrite() // as with Write
	}
}

// Read is for the forwarder.
func (k *keptClient) Read(p []byte) (int, error) {
	if k.failed != nil {
		return 0, k.failed // the kernel tells once only
	}
	return k.Conn.Read(p)
}

// SyscallConn lets the forwarder see that a client is gone from which it does not
// read just now. k.failed needs no looking at: it is read before anything else.
func (k *keptClient) SyscallConn() (syscall.RawConn, error) {
	if c, ok := k.Conn.(syscall.Conn); ok {
		return c.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// begunFlow counts what was sent before.
type begunFlow struct {
	sent int64
	forward.Flow
}

func (f begunFlow) Bytes() (toEndpoint, toClient int64) {
	toEndpoint, toClient = f.Flow.Bytes()
	return f.sent + toEndpoint, toClient
}

// portTaken reports whether err of a listener says that another port may do: this
// one is in use, or is not for this user.
func portTaken(err error) bool {
	return errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES)
}
