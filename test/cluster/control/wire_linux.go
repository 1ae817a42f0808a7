package control

import (
	"io"
	"net"
	"sync"

	. "github.com/onsi/ginkgo/v2"

	"github.com/usherproxy/usher/test/lab"
)

// Wire is a second route to the API server that a test can cut. For its clients the API server vanishes, while the test
// and the controllers keep their connections.
type Wire struct {
	plane   *Plane
	address string // "" until the first listen

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]struct{}
}

// NewWire returns a working wire. The end of the test closes it.
func (p *Plane) NewWire() *Wire {
	GinkgoHelper()
	w := &Wire{plane: p, conns: map[net.Conn]struct{}{}, address: net.JoinHostPort(p.address.String(), "0")}
	w.Repair()
	DeferCleanup(w.Cut)
	return w
}

// Server is the API server's URL through the wire.
func (w *Wire) Server() string { return "https://" + w.address }

// Cut resets all connections and refuses new ones.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listener != nil {
		w.listener.Close()
		w.listener = nil
	}
	w.drop()
}

// Break resets all connections; new ones work.
func (w *Wire) Break() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop()
}

// drop resets the connections. The caller must hold the lock.
func (w *Wire) drop() {
	for c := range w.conns {
		_ = c.(*net.TCPConn).SetLinger(0) // a reset, as from a machine that has restarted after a crash
		c.Close()
	}
	clear(w.conns)
}

// Repair restores a cut wire at the same address.
func (w *Wire) Repair() {
	GinkgoHelper()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.plane.ns.Do(func() (err error) {
		w.listener, err = net.Listen("tcp", w.address)
		return err
	})
	w.address = w.listener.Addr().String()
	l := w.listener
	lab.Serve(l, func(client net.Conn) { w.carry(l, client) })
}

// carry copies bytes between a client and the API server until a side closes.
func (w *Wire) carry(l net.Listener, client net.Conn) {
	server, err := w.plane.dial(w.plane.apiServer())
	if err != nil {
		return
	}
	if !w.keep(l, client, server) {
		server.Close()
		return
	}
	var both sync.WaitGroup
	one := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		to.Close()
		from.Close()
	}
	both.Go(func() { one(server, client) })
	both.Go(func() { one(client, server) })
	both.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, client)
	delete(w.conns, server)
}

// keep registers the connections, unless the wire has been cut in the meantime.
func (w *Wire) keep(l net.Listener, conns ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listener != l {
		return false
	}
	for _, c := range conns {
		w.conns[c] = struct{}{}
	}
	return true
}
