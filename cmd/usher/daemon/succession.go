package daemon

import (
	"context"
	"iter"
	"os"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy"
)

// begin serves the services of the initial sync. If the portal needs the lock, the daemon holds it afterwards, either
// from openPortal or from the process that it replaces. If ctx ends before that process has handed over, that process
// continues, and begin returns an error.
func (d *Daemon) begin(ctx context.Context, services []config.Service) error {
	var successor *handover.Successor
	if d.mustSucceed() {
		var err error
		if successor, err = d.succeed(ctx); err != nil {
			return err
		}
	}
	var handedOver map[string]*os.File
	if successor != nil {
		handedOver = successor.Sockets
	}
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
		if err := d.take(ctx, successor); err != nil {
			return err
		}
		// The other process may have made changes after this one read the kernel's rules.
		d.proxy.Check(context.Background())
	}
	d.proxy.CloseUnused()
	if lock := d.lock.Load(); lock != nil && d.config.Demo == nil {
		lock.Serve(d)
	}
	if successor != nil {
		d.workers.Go(func() { d.retryListeners(ctx) })
	}
	return nil
}

// take completes the takeover. If ctx has ended, this process is stopping, and take returns an error instead. stop
// waits while take runs.
func (d *Daemon) take(ctx context.Context, successor *handover.Successor) error {
	d.taking.Lock()
	defer d.taking.Unlock()
	if err := ctx.Err(); err != nil {
		successor.Abort()
		return err
	}
	lock, err := successor.Take()
	if err == nil {
		d.setLock(lock)
	}
	return err
}

// mustSucceed reports whether this process needs the lock and does not have it yet: another usher process holds it, or
// did when the portal was opened.
func (d *Daemon) mustSucceed() bool {
	return d.config.Netns == nil && d.lock.Load() == nil && d.proxy.Portal.Traits().Installs
}

// succeed asks the running usher process to hand over, or takes the lock if that process
// has ended meanwhile. It retries for successionTime, since that process may be about to end.
func (d *Daemon) succeed(ctx context.Context) (successor *handover.Successor, err error) {
	for deadline := time.Now().Add(successionTime); ; time.Sleep(100 * time.Millisecond) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
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

// successionTime is how long succeed retries.
const successionTime = 10 * time.Second

// retryListeners retries for about two seconds the listeners whose addresses the predecessor may still have used: it
// does not hand over every socket.
func (d *Daemon) retryListeners(ctx context.Context) {
	for n := 0; n < 20 && ctx.Err() == nil && d.proxy.Stats().Problems[proxy.ReasonListen] > 0; n++ {
		time.Sleep(100 * time.Millisecond)
		d.proxy.Check(ctx)
	}
}

// HandOver implements handover.Holder.
func (d *Daemon) HandOver() (sockets, more iter.Seq[handover.Socket], resume, release func(), err error) {
	sockets, more, resume, stop, err := d.proxy.HandOver()
	return sockets, more, resume, func() {
		close(d.handedOver)
		d.notifyStopping()
		d.config.Manager.Remove(fdstore.LockName)
		d.config.Manager.Remove(fdstore.HealthName)
		stop()
	}, err
}

// setLock records the lock that the daemon holds, nil for none, and stores a copy with the manager. While this process
// is being restarted, no other process must get the lock.
func (d *Daemon) setLock(lock *handover.Lock) {
	d.lock.Store(lock)
	m := d.config.Manager
	if m.Remove(fdstore.LockName); lock != nil {
		m.Put(fdstore.LockName, lock.File)
	}
}

func (d *Daemon) unlock() {
	if lock := d.lock.Load(); lock != nil {
		d.config.Manager.Remove(fdstore.LockName)
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
