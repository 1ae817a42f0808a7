package uplink

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/outcome"
)

const (
	// maxConnections is the maximum number of connections, each of which has a socket. The SYN of a further one is
	// dropped, and the client's kernel resends it.
	maxConnections = 16384
	// dialTimeout is the time for a destination to answer. The client's kernel resends its SYN for longer.
	dialTimeout = 30 * time.Second
)

// connect carries a TCP connection until it has ended. It completes the client's handshake only when the
// destination has answered, so that the client sees a refusal as one.
func (u *Uplink) connect(request *tcp.ForwarderRequest) {
	u.flows.Add(1)
	defer u.flows.Done()
	to := addrPort(request.ID().LocalAddress, request.ID().LocalPort)
	select {
	case u.tcp <- struct{}{}:
		defer func() { <-u.tcp }()
	default:
		request.Complete(false)
		return
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	dialed, err := dialer.DialContext(u.ctx, "tcp", to.String())
	if err != nil {
		var failure net.Error
		request.Complete(!errors.As(err, &failure) || !failure.Timeout()) // a reset, unless there was no answer
		return
	}
	server := dialed.(*net.TCPConn)
	var queue waiter.Queue
	endpoint, refused := request.CreateEndpoint(&queue)
	request.Complete(false)
	if refused != nil { // the client has disconnected
		_ = server.SetLinger(0) // resets the server's side
		server.Close()
		return
	}
	ended := make(chan struct{})
	flow := forward.Copy(client{gonet.NewTCPConn(&queue, endpoint), endpoint}, server, forward.Limits{HalfClosed: config.DefaultPolicy().HalfClosedTimeout}, forward.Done(func(outcome.Result) { close(ended) }))
	defer context.AfterFunc(u.ctx, flow.Break)()
	<-ended
}

// client is a client's side of a connection, as a forward.Conn.
type client struct {
	*gonet.TCPConn
	endpoint tcpip.Endpoint
}

// HungUp reports to the forwarder whether the client has ended its side or reset the connection, even if earlier data
// is unread.
func (c client) HungUp() (ended bool, err error) {
	ended = c.endpoint.Readiness(waiter.EventRdHUp|waiter.EventHUp|waiter.EventErr) != 0
	if tcp.EndpointState(c.endpoint.State()) == tcp.StateError { // EventErr is also set after an orderly end
		err = syscall.ECONNRESET
	}
	return ended, err
}

// SetLinger resets the connection: it is called only just before Close, with 0.
func (c client) SetLinger(int) error {
	c.endpoint.Abort()
	return nil
}
