package stream

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
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/frontend"
	"github.com/usherproxy/usher/proxy/outcome"
	"github.com/usherproxy/usher/proxy/proxyproto"
	"github.com/usherproxy/usher/proxy/search"
)

// servePortable serves a TCP client with goroutines: on systems without loops, if Options.Dial connects to the
// endpoints, and for clients passed to Serve. It takes ownership of conn and returns at once.
func (a *acceptor) servePortable(conn forward.Conn, from netip.AddrPort) {
	client := &keptClient{Conn: conn}
	c := a.accepted(client, from)
	if c == nil {
		return
	}
	g := &goroutine{Conn: c}
	g.setProxiedClient = func() outcome.Result {
		n, r := c.readHeader(client.await(a.server.ctx, headerTimeout, proxyproto.Complete))
		client.kept = client.kept[n:]
		return r
	}
	g.dial = func(ctx context.Context, v *frontend.View, from netip.AddrPort, to *config.Endpoint) (forwarder, error) {
		var endpoint forward.Conn
		err := g.withClient(ctx, errClientReset, forward.WaitReset, func(ctx context.Context) (err error) {
			endpoint, err = a.server.dial(ctx, from, to)
			return err
		})
		if err != nil {
			return nil, err
		}
		return client.sendUntilConfirmed(a.server.ctx, endpoint, c.Header(v))
	}
	go c.start(a, g)
}

// DialTCP connects to an endpoint through the kernel, with keepalive. Unless mark is 0, the socket gets that mark
// (SO_MARK). from need not be an address of this node; if it is zero, the kernel picks the address. DialTCP gives up
// when ctx ends.
func DialTCP(ctx context.Context, mark uint32, keepalive time.Duration, from netip.AddrPort, to netip.AddrPort) (forward.Conn, error) {
	d := net.Dialer{KeepAliveConfig: keepaliveConfig(keepalive)}
	if mark != 0 || from.IsValid() {
		d.Control = func(_, _ string, c syscall.RawConn) (err error) {
			failed := c.Control(func(fd uintptr) { err = prepareDialSocket(fd, mark, from) })
			return errors.Join(failed, err)
		}
	}
	c, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

func keepaliveConfig(idle time.Duration) net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: idle, Interval: keepaliveInterval, Count: keepaliveProbes}
}

// Unconfirmed is a connection whose endpoint may turn out not to exist.
type Unconfirmed interface {
	forward.Conn
	// Confirm waits briefly for evidence that the endpoint exists. After an error, nothing that was written until then
	// has reached the endpoint.
	Confirm() error
}

// keptClient is a client, with the bytes that it sent while no endpoint was confirmed. An endpoint may need them before
// it sends anything. If that endpoint does not exist, the next one gets them.
type keptClient struct {
	forward.Conn
	kept   []byte
	ended  bool  // end of stream follows kept
	failed error // error from reading the client
}

// maxEarly limits the bytes read from a client while no endpoint is confirmed. More bytes stay in the socket.
const maxEarly = 64 << 10

func (k *keptClient) localAddr() netip.AddrPort { return plainAddr(k.LocalAddr()) }

func (k *keptClient) originalDst(netip.Addr) (netip.AddrPort, error) { return kernel.OriginalDst(k) }

// await reads from the client until enough returns true for all bytes read so far, or until maxAwaited is reached. Its
// errors are those of forward.Loop.AwaitHeader, or context.DeadlineExceeded when ctx ends.
func (k *keptClient) await(ctx context.Context, timeout time.Duration, enough func([]byte) bool) ([]byte, error) {
	_ = k.SetReadDeadline(time.Now().Add(timeout)) // fails only if the client's socket is closed
	stop := context.AfterFunc(ctx, func() { _ = k.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		if stop() {
			_ = k.SetReadDeadline(time.Time{})
		}
	}()
	buf := make([]byte, maxAwaited)
	for len(k.kept) < maxAwaited {
		n, err := k.Conn.Read(buf[len(k.kept):])
		k.kept = append(k.kept, buf[len(k.kept):][:n]...)
		switch {
		case n > 0 && enough(k.kept):
			return k.kept, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return k.kept, context.DeadlineExceeded
		case errors.Is(err, io.EOF):
			return k.kept, io.ErrUnexpectedEOF
		case err != nil:
			return k.kept, search.Plain(err)
		}
	}
	return k.kept, nil
}

// maxAwaited is the maximum number of bytes that await reads, the same as in a loop.
const maxAwaited = 4 << 10

// sendUntilConfirmed sends the header and the client's bytes to the endpoint until the endpoint is confirmed. It
// returns the forwarder for the remaining bytes. It closes the endpoint when ctx ends, since a write may block.
func (k *keptClient) sendUntilConfirmed(ctx context.Context, endpoint forward.Conn, header []byte) (forwarder, error) {
	u, uncertain := endpoint.(Unconfirmed)
	if !uncertain && len(header) == 0 && len(k.kept) == 0 && !k.ended {
		return k.forwardTo(endpoint, 0), nil
	}
	defer context.AfterFunc(ctx, func() { endpoint.Close() })()
	withdraw := k.sendEarly(endpoint, header)
	var err error
	if uncertain {
		err = u.Confirm()
	}
	if err != nil {
		endpoint.Close() // before withdraw, which waits for a write
	}
	withdraw()
	if err != nil {
		if k.failed != nil {
			return nil, errClientReset
		}
		return nil, err
	}
	sent := int64(len(k.kept))
	k.kept = nil
	return k.forwardTo(endpoint, sent), nil
}

// forwardTo returns a forwarder to endpoint. sent is the number of the client's bytes already written to endpoint.
func (k *keptClient) forwardTo(endpoint forward.Conn, sent int64) forwarder {
	var client forward.Conn = k
	if k.failed == nil {
		client = k.Conn
	}
	return func(limits *forward.Limits, owner forward.Owner) forward.Flow {
		return forward.CopyRest(client, endpoint, sent, *limits, owner)
	}
}

// sendEarly starts to send to the endpoint: the header, the kept bytes, and further bytes that the client sends. It
// stops when withdraw is called; withdraw returns once it has stopped.
func (k *keptClient) sendEarly(to forward.Conn, header []byte) (withdraw func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.send(to, header)
	}()
	return func() {
		_ = k.SetReadDeadline(time.Unix(1, 0)) // fails only if the client's socket is closed
		<-done
		_ = k.SetReadDeadline(time.Time{})
	}
}

// send sends the bytes for sendEarly, until the client has ended, a write fails, maxEarly bytes are kept, or withdraw
// is called. It keeps all bytes that it reads, for the next endpoint. If the endpoint is lost, the forwarder gets the
// error when it reads.
func (k *keptClient) send(to forward.Conn, header []byte) {
	first := k.kept
	if len(header) > 0 {
		first = append(header, k.kept...)
	}
	_, err := to.Write(first)
	buf := make([]byte, 4<<10)
	for err == nil && !k.ended && k.failed == nil && len(k.kept) < maxEarly {
		n, readErr := k.Conn.Read(buf[:min(len(buf), maxEarly-len(k.kept))])
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
		_ = to.CloseWrite() // the forwarder sees a lost connection when it reads
	}
}

// Read is called by the forwarder.
func (k *keptClient) Read(p []byte) (int, error) {
	if k.failed != nil {
		return 0, k.failed // the kernel reports it only once
	}
	return k.Conn.Read(p)
}

// SyscallConn lets the forwarder detect that a client has left while the forwarder does not read from it. It ignores
// k.failed, which the forwarder's first Read returns.
func (k *keptClient) SyscallConn() (syscall.RawConn, error) {
	if c, ok := k.Conn.(syscall.Conn); ok {
		return c.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}
