package proxy

import (
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy/frontend"
)

// keeping records the sockets of this proxy that are in Options.Store. Proxy.mu guards it; writers hold both locks of a
// change.
//
// A listener's sockets are stored under a letter and a number, since all names together must fit into an environment
// variable. Recall gets their protocol and address from the sockets themselves.
type keeping struct {
	names map[frontend.Listener]string
	// recalled maps the handover name of a socket to the name under which an earlier process stored it, for
	// listeners that do not exist yet.
	recalled map[string]string
	last     uint64 // the last number assigned
	removed  bool   // sockets were removed since the last call of awaitRemoved
	// affinities is the index in keptAffinities at which the next file is stored. Only KeepAffinities uses it.
	affinities int
}

// keptListener is the first letter of the names of listeners' sockets.
const keptListener = "S"

// keptNumber returns the number in a name, and whether the name is that of a listener.
func keptNumber(name string) (number uint64, is bool) {
	text, is := strings.CutPrefix(name, keptListener)
	number, err := strconv.ParseUint(text, 36, 64)
	return number, is && err == nil
}

// Recall returns the argument for Inherit: handedOver if a running predecessor handed over sockets, else the sockets
// that an earlier process left in Options.Store. If sockets were handed over, Recall removes all other listeners'
// sockets from the Store: they may be outdated. Recall also restores session affinity from the Store. Call CloseUnused
// after the first Apply.
func (p *Proxy) Recall(handedOver map[string]*os.File) map[string]*os.File {
	sockets := handedOver
	if sockets == nil {
		sockets = map[string]*os.File{}
	}
	if p.Store == nil {
		return sockets
	}
	p.keeping.recalled = map[string]string{}
	for name := range p.Store.Kept {
		number, is := keptNumber(name)
		if !is {
			continue
		}
		p.keeping.last = max(p.keeping.last, number)
		whole := true
		for _, file := range p.Store.Take(name) {
			what, err := frontend.SocketNameOf(file)
			if handedOver == nil && err == nil && sockets[what] == nil {
				sockets[what] = file
			} else {
				whole = whole && err == nil && same(sockets[what], file)
				file.Close()
			}
			if whole {
				p.keeping.recalled[what] = name
			} else {
				delete(p.keeping.recalled, what)
			}
		}
		if !whole {
			p.Store.Remove(name)
		}
	}
	for n, name := range keptAffinities {
		for _, file := range p.Store.Take(name) {
			p.InheritAffinities(file)
			p.keeping.affinities = 1 - n
		}
	}
	for _, file := range p.Store.Take(fdstore.ConnectionsName) {
		sockets[fdstore.ConnectionsName] = file
	}
	return sockets
}

// same reports whether two descriptors are copies of the same file.
func same(a, b *os.File) bool {
	if a == nil {
		return false
	}
	this, err1 := a.Stat()
	that, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(this, that)
}

// HandOverKept yields copies of the descriptors in kept, which a proxy has stored, with the names that Proxy.HandOver
// uses.
func HandOverKept(kept map[string][]int) iter.Seq[handover.Socket] {
	return func(yield func(handover.Socket) bool) {
		affinities := false
		for name, fds := range kept {
			_, is := keptNumber(name)
			ofClients := slices.Contains(keptAffinities[:], name) && !affinities // of two files, either is complete
			if !is && !ofClients {
				continue
			}
			for _, fd := range fds {
				s, ok := frontend.SocketFor(fd, affinitiesName)
				if !ok {
					continue
				}
				var err error
				if is {
					s.Name, err = frontend.SocketNameOf(s.File)
				} else {
					affinities = true
				}
				if err != nil {
					s.File.Close()
				} else if !yield(s) {
					return
				}
			}
		}
	}
}

// removeOthersFromStore removes the recalled sockets that are not in sockets from the Store.
func (p *Proxy) removeOthersFromStore(sockets map[string]*os.File) {
	for what, name := range p.keeping.recalled {
		if sockets[what] == nil {
			p.Store.Remove(name)
			delete(p.keeping.recalled, what)
		}
	}
}

// CloseUnused closes the inherited sockets that no listener uses, once all Services are served.
func (p *Proxy) CloseUnused() {
	defer p.lock()()
	for name, file := range p.node.Inherited {
		file.Close()
		delete(p.node.Inherited, name)
	}
	p.removeOthersFromStore(nil)
}

// keep gives copies of a listener's sockets to Options.Store, unless the Store has them from an earlier process.
func (p *Proxy) keep(l frontend.Listener, protocol config.Protocol) {
	if p.Store == nil {
		return
	}
	k := &p.keeping
	if k.names == nil {
		k.names = map[frontend.Listener]string{}
	}
	what := frontend.SocketName(protocol, l.Addr())
	name, has := k.recalled[what]
	delete(k.recalled, what)
	if !has {
		k.last++
		name = keptListener + strconv.FormatUint(k.last, 36)
		p.Store.Put(name, func() *os.File { return p.copyOf(l, name) })
	}
	k.names[l] = name
}

// copyOf returns a copy of a listener's socket if it is still stored under name.
func (p *Proxy) copyOf(l frontend.Listener, name string) *os.File {
	p.mu.Lock() // the goroutine that closes l holds mu, too
	defer p.mu.Unlock()
	if p.keeping.names[l] != name || p.stopped {
		return nil
	}
	s, _ := l.HandOver()
	return s.File
}

func (p *Proxy) removeFromStore(l frontend.Listener) {
	if name, kept := p.keeping.names[l]; kept {
		p.Store.Remove(name)
		delete(p.keeping.names, l)
		p.keeping.removed = true
	}
}

// clearStore removes this proxy's sockets from the Store, since a successor has them.
func (p *Proxy) clearStore() {
	for _, name := range p.keeping.names {
		p.Store.Remove(name)
	}
	clear(p.keeping.names)
}

// awaitRemoved waits up to a second until the Store has closed removed sockets, whose addresses new listeners may need.
// It reports whether it waited. The caller holds both locks of a change.
func (p *Proxy) awaitRemoved() bool {
	if !p.keeping.removed {
		return false
	}
	p.keeping.removed = false
	p.unlocked(func() { p.Store.Wait(time.Second) }) // unlocked, since the Store may first call copyOf, which takes mu
	return true
}
