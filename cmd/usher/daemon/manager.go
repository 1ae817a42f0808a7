package daemon

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// notifyStopping notifies the manager of an intended stop. A keeper then does not restart the daemon, and systemd
// extends its stop timeout so that open connections can end.
func (d *Daemon) notifyStopping() {
	d.config.Manager.Notify(fmt.Sprintf("STOPPING=1\nEXTEND_TIMEOUT_USEC=%d", (d.config.DrainTimeout + 10*time.Second).Microseconds()))
}

// meetManager registers the manager as the store for sockets, and logs a recent crash of the previous usher process.
func (d *Daemon) meetManager() {
	m := d.config.Manager
	d.config.Proxy.Store = m
	if m != nil && time.Since(m.Crashed) < restartTime {
		d.log.WithField("restarts", m.Restarts).WithField("reason", m.Why).Warn("The previous usher process crashed; reusing its sockets")
	}
}

// restartTime exceeds the keeper's longest pause before it restarts usher after a crash (30 s). A process that starts
// later was not started because of that crash.
const restartTime = time.Minute

// restarts returns the keeper's restarts for the API; nil if there were none.
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
		d.workers.Go(func() { d.proxy.KeepAffinities(ctx) })
	}
}

// kept returns the file that an earlier process left with the manager under name, or nil if
// there is none. It closes any others. The caller closes the file.
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
