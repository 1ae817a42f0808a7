//go:build linux

// Command bench measures how many UDP datagrams a second go through a proxy
// and back. It is the client, and with -echo the server.
//
//	bench -echo 127.0.0.1:5300
//	bench -to 127.0.0.1:5301 -clients 16 -window 4 -for 3s
//
// Each client keeps so many datagrams under way; one that has not come back
// after a second counts as lost.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
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
	var wg sync.WaitGroup
	results := make([]result, *clients)
	began := time.Now()
	for i := range results {
		wg.Go(func() { results[i] = client(*to, *window, *size, *duration) })
	}
	wg.Wait()
	took := time.Since(began)
	var sum result
	for _, r := range results {
		if r.err != nil {
			log.Fatal(r.err)
		}
		sum.back += r.back
		sum.lost += r.lost
	}
	fmt.Printf("%.0f per second, %d lost\n", float64(sum.back)/took.Seconds(), sum.lost)
}

type result struct {
	back, lost int
	err        error
}

func client(to string, window, size int, duration time.Duration) (r result) {
	c, err := net.Dial("udp", to)
	if err != nil {
		return result{err: err}
	}
	defer c.Close()
	buf := make([]byte, size)
	stop := time.Now().Add(duration)
	for range window {
		if _, err := c.Write(buf); err != nil {
			return result{err: err}
		}
	}
	for under := window; under > 0; {
		if r.back%64 == 0 {
			if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
				return result{err: err}
			}
		}
		_, err := c.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			r.lost += under
			return r
		}
		if err != nil {
			return result{err: err}
		}
		r.back++
		under--
		if r.back%64 == 0 && time.Now().After(stop) {
			stop = time.Time{}
		}
		if !stop.IsZero() {
			if _, err := c.Write(buf); err != nil {
				return result{err: err}
			}
			under++
		}
	}
	return r
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
