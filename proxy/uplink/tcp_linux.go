package uplink

import (
	"io"
	"net"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// connect carries a TCP connection. The client's handshake is answered when its
// destination has answered, so that a refusal is seen as one.
func (u *Uplink) connect(request *tcp.ForwarderRequest) {
	u.flows.Add(1)
	defer u.flows.Done()
	to := addrPort(request.ID().LocalAddress, request.ID().LocalPort)
	var dialer net.Dialer
	dialed, err := dialer.DialContext(u.ctx, "tcp", to.String())
	if err != nil {
		request.Complete(true) // a reset
		return
	}
	server := dialed.(*net.TCPConn)
	var queue waiter.Queue
	endpoint, refused := request.CreateEndpoint(&queue)
	request.Complete(false)
	if refused != nil { // the client is gone
		reset(server)
		return
	}
	relay(gonet.NewTCPConn(&queue, endpoint), endpoint, server)
}

// relay moves bytes both ways until both sides are done, and closes the
// connections. The end of one direction is passed on by itself; a reset, as one.
func relay(client *gonet.TCPConn, endpoint tcpip.Endpoint, server *net.TCPConn) {
	answered := make(chan error, 1)
	go func() {
		_, err := io.Copy(client, server)
		if err == nil {
			err = client.CloseWrite()
		} else {
			endpoint.Abort()
		}
		answered <- err
	}()
	if _, err := io.Copy(server, client); err == nil {
		_ = server.CloseWrite() // fails if the server is gone, which the other direction sees
	} else {
		reset(server)
	}
	<-answered
	client.Close()
	server.Close()
}

// reset closes a connection so that the other side is told that it was broken off.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // fails only if it is closed
	c.Close()
}
