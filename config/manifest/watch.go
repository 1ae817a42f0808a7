package manifest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"
)

// patience is how long something has to last until it is believed.
type patience struct {
	// A file is often written in several steps, and a change is often one of several
	// files. After the last event all has to be quiet for settle until what changed is
	// read; but under constant change it is read every settleMax.
	settle, settleMax time.Duration

	// A file has to be gone for confirm, or to say nothing at all: editors and copying
	// programs make files vanish or be empty for a moment.
	confirm time.Duration
}

var usual = patience{settle: 25 * time.Millisecond, settleMax: 300 * time.Millisecond, confirm: 200 * time.Millisecond}

// How often files are looked at without an event: always where events are not
// to be had; now and then in any case, since some file systems (NFS, shared
// folders of virtual machines) have none for changes that others make.
const (
	pollAlone = time.Second
	pollToo   = 10 * time.Second
)

// watcher tells when files may have changed. It watches folders and not files,
// because a file that is replaced by another of the same name is not the one
// that was watched. It is used by one goroutine.
type watcher struct {
	paths    []string
	patience patience
	log      logrus.FieldLogger

	events *fsnotify.Watcher // nil: only polling
	dirs   map[string]fs.FileInfo

	folders map[string]bool // whose manifests are read
	names   map[string]bool // of which any change matters
}

func newWatcher(paths []string, p patience, notify func() (*fsnotify.Watcher, error), log logrus.FieldLogger) *watcher {
	w := &watcher{paths: paths, patience: p, log: log, dirs: map[string]fs.FileInfo{}}
	events, err := notify()
	if err != nil {
		w.poll(err)
		return w
	}
	w.events = events
	return w
}

// poll gives up on events.
func (w *watcher) poll(err error) {
	w.log.WithError(err).Warn("Cannot watch manifests (inotify); polling every 1s")
	w.close()
	w.events = nil
}

func (w *watcher) close() {
	if w.events != nil {
		w.events.Close()
	}
}

// follow watches what has to be watched for the files of l: the folders in which
// a file or a link is whose replacement would change what is read. It reports
// whether it watches a folder that it did not before.
func (w *watcher) follow(l listing) (added bool) {
	if w.events == nil {
		return false
	}
	w.folders, w.names = map[string]bool{}, map[string]bool{}
	want := map[string]bool{}
	follow := func(path string) string {
		names := trail(path)
		for _, n := range names {
			w.names[n] = true
			want[filepath.Dir(n)] = true
		}
		return names[len(names)-1]
	}
	for _, p := range w.paths {
		end := follow(absolute(p))
		if info, err := os.Stat(end); err == nil && info.IsDir() {
			w.folders[end], want[end] = true, true
		}
	}
	for _, e := range l.entries {
		if e.link {
			follow(e.abs)
		}
	}
	for dir := range w.dirs {
		if !want[dir] {
			w.forget(dir)
		}
	}
	for dir := range want {
		switch isNew, err := w.watch(dir); {
		case err != nil:
			w.poll(err)
			return false
		case isNew:
			added = true
		}
	}
	return added
}

// watch watches a folder, unless it does so already. That the folder does not
// exist is no error: its parent tells when it does, or polling does.
func (w *watcher) watch(dir string) (isNew bool, err error) {
	info, err := os.Stat(dir)
	if err != nil {
		w.forget(dir)
		return false, nil
	}
	if old := w.dirs[dir]; old != nil {
		if os.SameFile(old, info) {
			return false, nil
		}
		w.forget(dir) // another folder has taken its place
	}
	if err := w.events.Add(dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return false, nil
		}
		return false, err
	}
	w.dirs[dir] = info
	return true, nil
}

func (w *watcher) forget(dir string) {
	if w.dirs[dir] != nil {
		_ = w.events.Remove(dir) // may be gone with the folder
		delete(w.dirs, dir)
	}
}

// wait returns true when something may have changed since l was listed and has
// settled, or when there are doubts and it is time to confirm them; and false when
// ctx has ended. pending says that something has changed already.
func (w *watcher) wait(ctx context.Context, l listing, doubts, pending bool) bool {
	var events <-chan fsnotify.Event
	var errs <-chan error
	interval := pollAlone
	if w.events != nil {
		events, errs = w.events.Events, w.events.Errors
		interval = pollToo
		if len(l.problems) > 0 {
			interval = pollAlone
		}
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()

	var confirmed, settled <-chan time.Time
	if doubts {
		confirmed = time.After(w.patience.confirm)
	}
	var deadline time.Time // until which it has to settle
	changed := func() {
		now := time.Now()
		if deadline.IsZero() {
			deadline = now.Add(w.patience.settleMax)
		}
		settled = time.After(min(w.patience.settle, deadline.Sub(now)))
	}
	if pending {
		changed()
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-confirmed:
			if settled == nil { // or it is looked at soon, but not before it has settled
				return true
			}
		case <-settled:
			return true
		case e := <-events:
			away := e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)
			watched := w.dirs[e.Name] != nil
			if away {
				w.forget(e.Name) // a folder that is made again may look the same
			}
			if w.matters(e.Name) || away && watched {
				changed()
			}
		case err := <-errs: // mostly that there were more events than it could hold
			w.log.WithError(err).Debug("Failed to watch manifests")
			changed()
		case <-tick.C:
			if now := list(w.paths); settled == nil && !l.same(now) {
				changed()
			}
		}
	}
}

// matters reports whether a change of the file of that name can change what is
// read.
func (w *watcher) matters(name string) bool {
	return w.names[name] || w.folders[filepath.Dir(name)] && isManifest(filepath.Base(name))
}

// trail returns the names that lead to what path stands for: every symbolic
// link on the way, and the end, which is not one. If the way is broken, the end
// is where.
func trail(path string) []string {
	const maxLinks = 40 // as the kernel has it
	var out []string
	at := filepath.VolumeName(path) + string(filepath.Separator)
	todo := parts(path[len(filepath.VolumeName(path)):])
	for len(todo) > 0 {
		next := filepath.Join(at, todo[0])
		todo = todo[1:]
		info, err := os.Lstat(next)
		if err != nil || len(out) > maxLinks {
			return append(out, next)
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		out = append(out, next)
		target, err := os.Readlink(next)
		if err != nil {
			return out
		}
		if filepath.IsAbs(target) {
			at = filepath.VolumeName(target) + string(filepath.Separator)
			target = target[len(filepath.VolumeName(target)):]
		}
		todo = append(parts(target), todo...)
	}
	return append(out, at)
}

func parts(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator })
}
