package daemon

import (
	"context"
	"iter"
	"os"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy"
)

// begin carries out the first full picture, and has the lock then, if one is needed:
// its own, or that of the usher from which it takes over.
func (d *Daemon) begin(services []config.Service) error {
	var successor *handover.Successor
	if d.mustSucceed() {
		var err error
		if successor, err = d.succeed(); err != nil {
			return err
		}
	}
	var handedOver map[string]*os.File
	if successor != nil {
		handedOver = successor.Sockets
	}
	d.recallAffinities()
	sockets := d.proxy.Recall(handedOver)
	d.proxy.Inherit(sockets)
	d.proxy.Apply(services)
	if successor != nil {
		if err := successor.More(); err != nil {
			successor.Abort()
			return err
		}
	}
	d.proxy.InheritRest(sockets)
	if successor != nil {
		lock, err := successor.Take()
		if err != nil {
			return err
		}
		d.setLock(lock)
		d.settle()
	}
	d.proxy.Recalled()
	if lock := d.lock.Load(); lock != nil && d.config.Demo == nil {
		lock.Serve(d)
	}
	return nil
}

// mustSucceed reports whether another usher has the lock that this one needs.
func (d *Daemon) mustSucceed() bool {
	return d.config.Netns == nil && d.lock.Load() == nil && d.proxy.Portal.Traits().Installs
}

// succeed asks the usher that is here to hand over, or takes the lock if that
// one has ended meanwhile, or is about to: for some time it tries again.
func (d *Daemon) succeed() (successor *handover.Successor, err error) {
	for deadline := time.Now().Add(successionTime); ; time.Sleep(100 * time.Millisecond) {
		if successor, err = handover.Ask(); err == nil {
			return successor, nil
		}
		if lock, err := Lock(d.log, nil); err == nil {
			d.setLock(lock)
			return nil, nil
		}
		if time.Now().After(deadline) {
			return nil, err
		}
	}
}

// successionTime is how long an usher may take to say whether it hands over.
const successionTime = 10 * time.Second

// settle tries again, for some time, what could not be done while the other usher
// was there: not every socket is handed over. It also finds what that one changed
// after this one had looked first.
func (d *Daemon) settle() {
	for range 20 {
		d.proxy.Check(context.Background())
		if d.proxy.Stats().Problems[proxy.ReasonListen] == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// HandOver implements handover.Holder.
func (d *Daemon) HandOver() (sockets, more iter.Seq[handover.Socket], resume, release func(), err error) {
	if d.draining.Load() {
		return d.proxy.HandOverNamespace(), handover.None, func() {}, func() {}, nil
	}
	sockets, more, resume, stop, err := d.proxy.HandOver()
	return sockets, more, resume, func() {
		close(d.handedOver)
		d.config.Manager.Tell(stopping)
		for _, name := range append([]string{keptLock, keptHealth}, keptAffinities[:]...) { // at once; the rest when it is closed
			d.config.Manager.Remove(name)
		}
		stop()
	}, err
}

// setLock notes that the daemon has the lock, or with nil that it has none, and keeps it
// with the manager: nobody else is to have it, should this process be started again.
func (d *Daemon) setLock(lock *handover.Lock) {
	d.lock.Store(lock)
	m := d.config.Manager
	if m.Remove(keptLock); lock != nil {
		m.Put(keptLock, func() []*os.File { return one(lock.File()) })
	}
}

func (d *Daemon) unlock() {
	if lock := d.lock.Load(); lock != nil {
		d.config.Manager.Remove(keptLock)
		lock.Release()
	}
}

func (d *Daemon) isHandedOver() bool {
	select {
	case <-d.handedOver:
		return true
	default:
		return false
	}
}
