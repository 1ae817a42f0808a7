package keeper

import (
	"fmt"
	"iter"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/admin"
)

// pause is the time until usher is restarted.
type pause struct {
	timer  *time.Timer
	health *http.Server   // nil if the keeper does not answer health checks meanwhile
	lock   *handover.Lock // held before by usher; nil for none
}

// begin schedules the next start of usher after wait.
func (k *keeper) begin(wait time.Duration) {
	k.pause = &pause{timer: time.NewTimer(wait)}
	if wait < answeredPause {
		return
	}
	if file := k.copyOf(fdstore.LockName); file != nil {
		lock, err := handover.Hold(file)
		if err != nil {
			k.Log.WithError(err).Warn("Cannot report to other instances that the keeper holds the portals")
		} else {
			k.pause.lock = lock
			lock.Serve(k)
		}
	}
	if file := k.copyOf(fdstore.HealthName); file != nil {
		if l, err := net.FileListener(file); err == nil {
			why := fmt.Sprintf("usher exited unexpectedly %d times, last reason: %s; restarting it at %s",
				k.restarts, k.last, time.Now().Add(wait).Format(time.RFC3339))
			k.pause.health = admin.ServeOn(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Connection", "close")
				http.Error(w, why, http.StatusInternalServerError)
			}), admin.MaxClients)
		}
		file.Close()
	}
}

// over returns a channel that receives when the pause has elapsed.
func (p *pause) over() <-chan time.Time {
	if p == nil {
		return nil
	}
	return p.timer.C
}

// end ends the pause. It waits for a handover in progress.
func (p *pause) end() {
	if p == nil {
		return
	}
	p.timer.Stop()
	if p.lock != nil {
		p.lock.Release()
	}
	if p.health != nil {
		p.health.Close()
	}
}

// copyOf returns a copy of the first file that is kept under a name, or nil.
func (k *keeper) copyOf(name string) *os.File {
	for _, kept := range k.kept[name] {
		if fd, err := unix.FcntlInt(uintptr(kept), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			return os.NewFile(uintptr(fd), name)
		}
	}
	return nil
}

// HandOver implements handover.Holder: another usher instance may take over while none runs here.
func (k *keeper) HandOver() (sockets, more iter.Seq[handover.Socket], resume, release func(), err error) {
	return proxy.HandOverKept(k.kept), handover.None, func() {}, func() { k.taken <- struct{}{} }, nil
}
