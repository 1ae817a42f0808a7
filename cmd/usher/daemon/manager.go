package daemon

import (
	"context"
	"fmt"
	"os"

	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/proxy/admin"
)

// What the daemon keeps with its manager beside the listeners of Services: see
// proxy.Options.Store.
const (
	keptLock   = "lock"
	keptHealth = "health"
)

// keptAffinities are the names of the files with which client had which endpoint. A new
// one is there before the one before is removed.
var keptAffinities = [2]string{"affinities0", "affinities1"}

// stopping tells the manager that the daemon ends as it was told: it is not to be started
// again by a keeper.
const stopping = "STOPPING=1"

// meetManager takes note of the manager, and says why there was an usher before.
func (d *Daemon) meetManager() {
	m := d.config.Manager
	d.config.Proxy.Store = m
	if m != nil && m.Restarts > 0 {
		d.log.WithField("restarts", m.Restarts).WithField("reason", m.Why).Warn("The previous usher process crashed; reusing its sockets")
	}
}

// restarts returns what the health answers say of a keeper: nil if there was no need of
// it.
func (d *Daemon) restarts() *admin.Restarts {
	m := d.config.Manager
	if m == nil || m.Restarts == 0 {
		return nil
	}
	return &admin.Restarts{Count: m.Restarts, Last: m.Why}
}

// tellReady tells the manager that the first full picture is served, and from then on
// that all is well, as long as it is.
func (d *Daemon) tellReady(ctx context.Context, services int) {
	m := d.config.Manager
	m.Forget() // what nobody has asked for by now
	m.Tell(fmt.Sprintf("READY=1\nSTATUS=Serving %d Services through portal %s", services, d.proxy.Portal.Mode()))
	d.workers.Go(func() { m.Watch(ctx, d.health.Alive) })
	if m != nil {
		d.workers.Go(func() { d.keepAffinities(ctx) })
	}
}

// keepAffinities keeps with the manager which client had which endpoint, until ctx ends.
func (d *Daemon) keepAffinities(ctx context.Context) {
	m, n := d.config.Manager, d.nextAffinities
	d.proxy.KeepAffinities(ctx, func(file *os.File) {
		keepUnder(m, n, file)
		n = 1 - n
	})
}

// keepUnder keeps file under the nth of the names, and nothing under the other. It is never
// under none; and under both if a process was killed meanwhile, so this one comes into the
// place of what is there.
func keepUnder(m *fdstore.Manager, n int, file *os.File) {
	m.Remove(keptAffinities[n])
	m.Put(keptAffinities[n], func() []*os.File { return one(file) })
	m.Remove(keptAffinities[1-n])
}

// recallAffinities makes clients keep the endpoints that they had when an earlier process
// crashed.
func (d *Daemon) recallAffinities() {
	for n, name := range keptAffinities {
		for _, file := range d.config.Manager.Take(name) {
			d.proxy.InheritAffinities(file)
			d.nextAffinities = 1 - n // what is kept under this name is removed then
		}
	}
}

// kept returns what an earlier process has left with the manager under a name, if it is
// one file, or nil. The caller closes it.
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

// one returns the file, or nothing if there is none.
func one(file *os.File) []*os.File {
	if file == nil {
		return nil
	}
	return []*os.File{file}
}
