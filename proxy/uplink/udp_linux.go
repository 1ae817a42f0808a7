package uplink

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	// udpIdle is how long a flow is kept without a datagram: RFC 4787 forbids a NAT to forget one in less
	// than two minutes.
	udpIdle = 2 * time.Minute
	// maxUDPFlows is the maximum number of flows, each of which has a socket; datagrams of further flows are
	// dropped.
	maxUDPFlows = 4096
	// maxDatagram is the size of the largest UDP datagram.
	maxDatagram = 65535
)

// associate carries the datagrams of a client to one destination, and back. If it cannot make a socket, as without a
// route, it returns false, and the stack refuses the client.
func (u *Uplink) associate(request *udp.ForwarderRequest) bool {
	to := addrPort(request.ID().LocalAddress, request.ID().LocalPort)
	if to.Addr().IsMulticast() {
		return true // dropped, as behind a NAT
	}
	select {
	case u.udp <- struct{}{}:
	default:
		return true // dropped
	}
	server, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		<-u.udp
		return false
	}
	var queue waiter.Queue
	endpoint, failed := request.CreateEndpoint(&queue)
	if failed != nil { // another datagram of the same flow was faster
		server.Close()
		<-u.udp
		return true
	}
	u.flows.Go(func() {
		defer func() { <-u.udp }()
		u.exchange(gonet.NewUDPConn(&queue, endpoint), server)
	})
	return true
}

// exchange forwards datagrams until there has been none for udpIdle, or one side fails, and closes both.
func (u *Uplink) exchange(client, server net.Conn) {
	var last atomic.Int64 // time of the last datagram, Unix nanoseconds
	last.Store(time.Now().UnixNano())
	pass := func(to, from net.Conn) {
		defer client.Close()
		defer server.Close()
		buf := make([]byte, maxDatagram)
		for {
			_ = from.SetReadDeadline(time.Unix(0, last.Load()).Add(udpIdle)) // fails if closed, which Read reports
			n, err := from.Read(buf)
			now := time.Now()
			if err != nil {
				if timeout, ok := err.(net.Error); ok && timeout.Timeout() && now.UnixNano()-last.Load() < int64(udpIdle) {
					continue // there was one in the other direction
				}
				return
			}
			last.Store(now.UnixNano())
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
	}
	defer context.AfterFunc(u.ctx, func() { client.Close() })()
	var back sync.WaitGroup
	back.Go(func() { pass(client, server) })
	pass(server, client)
	back.Wait()
}
