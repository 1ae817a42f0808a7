package proxy

import (
	"errors"
	"iter"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/frontend"
)

// Inherit makes listeners use a predecessor's sockets, and restores its session affinity and UDP sessions. It keeps the
// map sockets, and removes the entries that it uses. Call it before the first Apply, and InheritRest after that.
func (p *Proxy) Inherit(sockets map[string]*os.File) {
	p.predecessor = p.streams.Inherit(sockets)
	p.datagrams.Inherit(sockets)
	p.takeAffinities(sockets)
	p.node.Inherited = sockets
	p.removeOthersFromStore(sockets)
}

// InheritRest restores the affinity and UDP sessions of clients that connected to the predecessor after the first
// handover. It drops inherited affinities whose service port does not exist. It then starts to take over open
// connections, if the predecessor hands them over.
func (p *Proxy) InheritRest(sockets map[string]*os.File) {
	defer p.lock()()
	p.datagrams.InheritRest(sockets)
	p.takeAffinities(sockets)
	p.pendingAffinities = nil
	switch {
	case !p.stopped:
		p.streams.Receive(p.predecessor, &receiver{proxy: p})
	case p.predecessor != nil: // Drain may have returned
		p.predecessor.Close()
	}
	p.predecessor = nil
}

func (p *Proxy) takeAffinities(sockets map[string]*os.File) {
	if file := sockets[affinitiesName]; file != nil {
		delete(sockets, affinitiesName)
		p.InheritAffinities(file)
	}
}

// HandOver implements handover.Holder. Until resume or release is called, the proxy makes no changes, but it serves
// clients and can be inspected. After release it makes no changes at all, and the caller must stop it.
func (p *Proxy) HandOver() (sockets, more iter.Seq[handover.Socket], resume, release func(), err error) {
	p.changes.Lock()
	if !p.started || p.stopped {
		p.changes.Unlock()
		return nil, nil, nil, nil, errors.New("the proxy is not serving")
	}
	var transfer *net.UnixConn
	sockets = func(yield func(handover.Socket) bool) {
		if !p.sockets(yield) {
			return
		}
		o, theirs, err := p.streams.NewTransfer()
		if transfer = o; err != nil {
			p.Log.WithError(err).Warn("Cannot hand over open connections")
		} else if !yield(theirs) {
			return
		}
		p.clients(false, yield)
	}
	more = func(yield func(handover.Socket) bool) { p.clients(true, yield) }
	release = func() {
		p.mu.Lock()
		p.stopped, p.handedOver = true, true
		p.mu.Unlock()
		for _, name := range keptAffinities { // at once; the sockets follow when the proxy stops
			p.Store.Remove(name)
		}
		if transfer != nil {
			p.streams.HandOver(transfer, p.leaving) // before Stop, and thus Drain, can proceed
		}
		p.changes.Unlock()
	}
	resume = func() {
		if transfer != nil {
			transfer.Close()
		}
		p.datagrams.Resume()
		p.changes.Unlock()
		if r, is := p.Portal.(portal.Resumer); is {
			r.Resume()
		}
		p.Check(p.ctx) // the successor may have changed something
	}
	return sockets, more, resume, release, nil
}

// leaving returns the time at which each endpoint in balance.Pool.Leaving was removed or began to terminate.
func (p *Proxy) leaving() map[*balance.State]time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[*balance.State]time.Time{}
	for _, fronts := range p.services {
		for _, f := range fronts {
			for _, l := range f.pool.Leaving {
				all[l.State] = l.Since
			}
		}
	}
	return all
}

// receiver implements stream.Receiver.
type receiver struct {
	proxy  *Proxy
	drains map[*frontEnd]bool
}

func (h *receiver) Begin() error {
	p := h.proxy
	p.changes.Lock()
	p.mu.Lock()
	h.drains = map[*frontEnd]bool{}
	if p.stopped {
		h.End()
		return errors.New("the proxy is stopped")
	}
	return nil
}

func (h *receiver) End() {
	for f := range h.drains {
		f.drain()
	}
	h.proxy.mu.Unlock()
	h.proxy.changes.Unlock()
}

// Find implements stream.Receiver. It falls back to the VIP, since the service port may have been renamed.
func (h *receiver) Find(port config.PortID, vip netip.AddrPort, e *config.Endpoint, left time.Time) (*frontend.FrontEnd, *balance.Endpoint) {
	p := h.proxy
	f := p.services[port.ServiceName()][port]
	if f == nil {
		f = p.owners[portal.Target{Protocol: portal.TCP, Addr: vip.Addr(), Port: vip.Port()}]
	}
	if f == nil || f.Protocol != config.TCP || f.ID().ServiceName() != port.ServiceName() {
		return nil, nil
	}
	before := len(f.pool.Leaving)
	endpoint := f.pool.Inherit(e, left, time.Now())
	if !left.IsZero() || len(f.pool.Leaving) > before {
		h.drains[f] = true
	}
	return f.FrontEnd, endpoint
}

// clients yields the affinities and UDP sessions for a successor. If last is set, the UDP sessions are those that the
// first call did not yield. The caller holds Proxy.changes.
func (p *Proxy) clients(last bool, yield func(handover.Socket) bool) {
	if file, err := p.Affinities(); err != nil {
		p.Log.WithError(err).Warn("Failed to hand over session affinity; clients may change endpoints")
	} else if !yield(handover.Socket{Name: affinitiesName, File: file}) {
		return
	}
	p.datagrams.Sessions(last)(yield)
}

// sockets yields copies of the sockets that a successor can use, and reports whether yield accepts more. The caller
// holds Proxy.changes.
func (p *Proxy) sockets(yield func(handover.Socket) bool) bool {
	for _, fronts := range p.services {
		for _, f := range fronts {
			for _, l := range f.listeners {
				if s, ok := l.HandOver(); ok && !yield(s) {
					return false
				}
			}
		}
	}
	return true
}
