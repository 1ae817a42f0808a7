//go:build linux

// Command bench measures how many UDP datagrams a second go through a proxy
// and back. It is the client, and with -echo the server.
//
//	bench -echo 127.0.0.1:5300
//	bench -to 127.0.0.1:5301 -clients 16 -window 4 -for 3s
//
// Each client keeps so many datagrams under way; one that has not come back a
// second after the end counts as lost.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/proxy/forward"
)

func main() {
	log.SetFlags(0)
	echo := flag.String("echo", "", "`address` on which to send back what comes")
	to := flag.String("to", "", "`address` to send to")
	clients := flag.Int("clients", 16, "clients")
	window := flag.Int("window", 4, "datagrams that each client has under way")
	size := flag.Int("size", 64, "bytes of a datagram")
	duration := flag.Duration("for", 3*time.Second, "how long")
	flag.Parse()
	if *echo != "" {
		log.Fatal(serve(*echo))
	}
	back, lost, err := measure(*to, *clients, *window, *size, *duration)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.0f per second, %d lost\n", float64(back)/duration.Seconds(), lost)
}

// measure runs all clients on one loop, so that the proxy has the processors
// for itself as far as that can be. It returns how many datagrams came back,
// and how many had not a second after the last was sent.
func measure(to string, clients, window, size int, duration time.Duration) (back, lost int, err error) {
	addr, err := netip.ParseAddrPort(to)
	if err != nil {
		return 0, 0, err
	}
	p, err := forward.NewPoller()
	if err != nil {
		return 0, 0, err
	}
	defer p.Close()
	payload := make([]byte, size)
	started := make(chan error, 1)
	var all []*client
	err = p.Do(func() {
		started <- func() error {
			b := forward.NewBatch(32)
			for range clients {
				fd, err := forward.ConnectUDP(netip.Addr{}, addr)
				if err != nil {
					return err
				}
				c := &client{fd: fd, b: b}
				all = append(all, c)
				if _, err := p.Add(fd, forward.Readable, c); err != nil {
					return err
				}
				for range window {
					if err := unix.Send(fd, payload, 0); err != nil {
						return err
					}
					c.sent++
				}
			}
			return nil
		}()
	})
	if err = errors.Join(err, <-started); err != nil {
		return 0, 0, err
	}
	sum := func(stop bool) (sent, back int) {
		done := make(chan struct{})
		_ = p.Do(func() {
			for _, c := range all {
				c.stopped = stop
				sent += c.sent
				back += c.back
			}
			close(done)
		})
		<-done
		return sent, back
	}
	time.Sleep(duration)
	_, back = sum(true)
	time.Sleep(time.Second)
	sent, came := sum(true)
	return back, sent - came, nil
}

// client sends a datagram for each that comes back.
type client struct {
	fd         int
	b          *forward.Batch
	sent, back int
	stopped    bool
}

// Ready implements forward.Handler.
func (c *client) Ready(forward.Readiness) {
	n, err := c.b.ReceiveConnected(c.fd, 0, 16)
	if err != nil {
		return
	}
	c.back += n
	if c.stopped {
		return
	}
	for i := range n {
		c.b.Unaddress(i)
	}
	sent, _ := c.b.Send(c.fd, 0, n)
	c.sent += sent
}

// serve is an echo server that is not the bottleneck.
func serve(at string) error {
	addr, err := netip.ParseAddrPort(at)
	if err != nil {
		return err
	}
	fds, err := forward.ListenUDP(addr, runtime.GOMAXPROCS(0))
	if err != nil {
		return err
	}
	failed := make(chan error)
	for _, fd := range fds {
		go func() { failed <- echoLoop(fd) }()
	}
	for range fds {
		if err := <-failed; err != nil {
			return err
		}
	}
	select {} // the loops run
}

type echoHandler struct {
	fd int
	b  *forward.Batch
}

func (e *echoHandler) Ready(forward.Readiness) {
	n, err := e.b.Receive(e.fd, 0, e.b.Cap())
	if err != nil {
		return
	}
	for i := range n {
		e.b.Address(i, e.b.Peer(i), nil)
	}
	for at := 0; at < n; at++ {
		sent, _ := e.b.Send(e.fd, at, n-at)
		at += sent
	}
}

func echoLoop(fd int) error {
	p, err := forward.NewPoller()
	if err != nil {
		return err
	}
	return p.Do(func() {
		if _, err := p.Add(fd, unix.EPOLLIN, &echoHandler{fd, forward.NewBatch(32)}); err != nil {
			log.Fatal(err)
		}
	})
}
