package daemon

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/admin/api"
)

// notifyStopping notifies the manager of an intended stop, after which a keeper must not restart the daemon. systemd
// must wait for the open connections, too.
func (d *Daemon) notifyStopping() {
	d.config.Manager.Notify(fmt.Sprintf("STOPPING=1\nEXTEND_TIMEOUT_USEC=%d", (d.config.DrainTimeout + 10*time.Second).Microseconds()))
}

// meetManager registers the manager as the store for sockets, and logs why the previous usher process ended.
func (d *Daemon) meetManager() {
	m := d.config.Manager
	d.config.Proxy.Store = m
	if m != nil && time.Since(m.Crashed) < restartTime {
		d.log.WithField("restarts", m.Restarts).WithField("reason", m.Why).Warn("The previous usher process crashed; reusing its sockets")
	}
}

// restartTime is longer than the keeper waits at most before it restarts usher after a crash. A process that starts
// later is an upgrade.
const restartTime = time.Minute

// restarts returns the keeper's restarts for users: nil if there were none.
func (d *Daemon) restarts() *api.Restarts {
	m := d.config.Manager
	if m == nil || m.Restarts == 0 {
		return nil
	}
	return &api.Restarts{Count: m.Restarts, Last: m.Why, Time: m.Crashed}
}

// notifyReady notifies the manager that the daemon serves the initial sync. From then on it notifies the manager
// periodically while the daemon is healthy.
func (d *Daemon) notifyReady(ctx context.Context, services int) {
	m := d.config.Manager
	m.Forget() // closes files that this process has not taken by now
	m.Notify(fmt.Sprintf("READY=1\nSTATUS=Serving %d Services through portal %s", services, d.proxy.Portal.Mode()))
	d.workers.Go(func() { m.Watch(ctx, d.health.Alive) })
	if m != nil {
		d.workers.Go(func() { d.keepAffinities(ctx) })
	}
}

// keepAffinities saves with the manager each client's endpoint, until ctx ends.
func (d *Daemon) keepAffinities(ctx context.Context) {
	m, n := d.config.Manager, d.nextAffinities
	d.proxy.KeepAffinities(ctx, func(file *os.File) {
		keepUnder(m, n, file)
		n = 1 - n
	})
}

// keepUnder stores file under the nth of the names, and removes the other one's. Unless the manager cannot store a file,
// one name always has one. Both have one if a process was killed between the steps; therefore the nth is removed first.
func keepUnder(m *fdstore.Manager, n int, file *os.File) {
	m.Remove(proxy.KeptAffinities[n])
	m.Put(proxy.KeptAffinities[n], func() *os.File { return file })
	m.Remove(proxy.KeptAffinities[1-n])
}

// recallAffinities restores the session affinity that an earlier process saved before it crashed.
func (d *Daemon) recallAffinities() {
	for n, name := range proxy.KeptAffinities {
		for _, file := range d.config.Manager.Take(name) {
			d.proxy.InheritAffinities(file)
			d.nextAffinities = 1 - n // so the next save removes this file last
		}
	}
}

// kept returns the file that an earlier process left with the manager under name, or nil
// without one. It closes any others. The caller closes the file.
func (d *Daemon) kept(name string) *os.File {
	files := d.config.Manager.Take(name)
	for i, f := range files {
		if i > 0 {
			f.Close()
		}
	}
	if len(files) == 0 {
		return nil
	}
	return files[0]
}
