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

// debounce holds the delays before changes are applied.
type debounce struct {
	// A file is often written in several steps, and a change is often one of several files. Changes are read when there
	// has been no event for quiet; but under constant change they are read every quietMax.
	quiet, quietMax time.Duration

	// A file counts as deleted or empty only after confirm: editors and copying programs make files missing or empty
	// for a moment.
	confirm time.Duration
}

var defaultDebounce = debounce{quiet: 25 * time.Millisecond, quietMax: 300 * time.Millisecond, confirm: 200 * time.Millisecond}

// The intervals for listing files without an event: pollAlone if events are unavailable or a path cannot be listed,
// otherwise pollToo. NFS and shared folders of virtual machines have no events for changes on other machines.
const (
	pollAlone = time.Second
	pollToo   = 10 * time.Second
)

// watcher detects when files may have changed. It watches folders and not files: a file that is replaced by another of
// the same name is no longer the watched one. It is not safe for concurrent use.
type watcher struct {
	paths    []string
	debounce debounce
	log      logrus.FieldLogger

	events *fsnotify.Watcher // nil: only polling
	dirs   map[string]fs.FileInfo

	folders map[string]bool // whose manifests are read
	names   map[string]bool // of which any change matters
}

func newWatcher(paths []string, p debounce, notify func() (*fsnotify.Watcher, error), log logrus.FieldLogger) *watcher {
	w := &watcher{paths: paths, debounce: p, log: log, dirs: map[string]fs.FileInfo{}}
	events, err := notify()
	if err != nil {
		w.poll(err)
		return w
	}
	w.events = events
	return w
}

// poll switches from events to polling.
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

// follow watches each folder that contains a path, or a link, whose replacement would change the files of l, and stops
// watching others. It reports whether it added a folder.
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

// watch watches a folder, unless it already does. A missing folder is no error: its parent has an event when it is
// created, or polling detects it.
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
		w.forget(dir) // another folder has the same path now
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
		_ = w.events.Remove(dir) // it may have been removed with the folder
		delete(w.dirs, dir)
	}
}

// wait returns true when something may have changed since l was listed and has settled, or when it is time to confirm
// doubts. It returns false when ctx has ended. pending says that something has already changed.
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
		confirmed = time.After(w.debounce.confirm)
	}
	var deadline time.Time // for settling
	changed := func() {
		now := time.Now()
		if deadline.IsZero() {
			deadline = now.Add(w.debounce.quietMax)
		}
		settled = time.After(min(w.debounce.quiet, deadline.Sub(now)))
	}
	if pending {
		changed()
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-confirmed:
			if settled == nil { // otherwise files are read soon, when the change has settled
				return true
			}
		case <-settled:
			return true
		case e := <-events:
			away := e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)
			watched := w.dirs[e.Name] != nil
			if away {
				w.forget(e.Name) // a re-created folder may look the same
			}
			if w.matters(e.Name) || away && watched {
				changed()
			}
		case err := <-errs: // usually because its queue overflowed
			w.log.WithError(err).Debug("Failed to watch manifests")
			changed()
		case <-tick.C:
			if now := list(w.paths); settled == nil && !l.same(now) {
				changed()
			}
		}
	}
}

// matters reports whether a change of the file of that name can change the content.
func (w *watcher) matters(name string) bool {
	return w.names[name] || w.folders[filepath.Dir(name)] && isManifest(filepath.Base(name))
}

// trail returns the names on the way from path to its target: every symbolic link, and the target, which is not a link.
// If the target does not exist, the last name is the first missing one.
func trail(path string) []string {
	const maxLinks = 40 // the kernel's limit
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
