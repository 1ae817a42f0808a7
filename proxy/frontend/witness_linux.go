package frontend

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/portal/kernel"
)

// witness looks from time to time whether an endpoint really sees its client's address: a
// rule of others may translate what usher sends all the same, such as a CNI's that
// masquerades what leaves the node. Conntrack knows.
type witness struct {
	next atomic.Int64 // when to look again, in nanoseconds since 1970

	mu     sync.Mutex // guards what follows
	flows  *kernel.Flows
	failed bool // conntrack cannot be asked
	told   map[netip.Addr]time.Time
}

const (
	witnessEvery = time.Second
	witnessTold  = 10 * time.Minute // for the same address that is seen
	witnessMost  = 16               // addresses that are remembered
)

// Witness is called when the client is connected to an endpoint, at now. local tells from where;
// it is asked before Witness returns.
func (c *Client) Witness(now time.Time, to netip.AddrPort, local func() (netip.AddrPort, error)) {
	if !c.seen.Client() {
		return
	}
	w := &c.Front.witness
	next := w.next.Load()
	if now.UnixNano() < next || !w.next.CompareAndSwap(next, now.Add(witnessEvery).UnixNano()) {
		return
	}
	from, err := local()
	if err != nil {
		return
	}
	client, front := c.From.Addr(), c.Front
	go func() {
		if seen := w.look(front, from, to); seen.IsValid() && seen != client && w.tell(seen, now) {
			front.Log.WithFields(logrus.Fields{"service": front.ID().String(), "client": client.String(), "endpoint": to.String(), "seen": seen.String()}).
				Warn("An endpoint does not see its client's address: another rule of this node translates it, perhaps the CNI's that masquerades what leaves the node")
		}
	}()
}

// look returns whom to sees; the zero Addr if that cannot be told.
func (w *witness) look(f *FrontEnd, from, to netip.AddrPort) (seen netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.flows == nil && !w.failed {
		var err error
		if w.flows, err = kernel.OpenFlows(); err != nil {
			w.failed = true
			f.Log.WithError(err).Debug("it cannot be looked up whom endpoints see")
		}
	}
	if w.flows == nil {
		return seen
	}
	as, err := w.flows.SeenAs(portalProtocols[f.Protocol], from, to)
	if err != nil {
		return seen // it has ended since
	}
	return as.Addr()
}

// tell reports whether it was not told of lately that this one is seen.
func (w *witness) tell(seen netip.Addr, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last, is := w.told[seen]; is && now.Sub(last) < witnessTold {
		return false
	}
	if w.told == nil || len(w.told) >= witnessMost {
		w.told = map[netip.Addr]time.Time{}
	}
	w.told[seen] = now
	return true
}
