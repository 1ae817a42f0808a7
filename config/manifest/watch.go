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

// A file is often written in several steps. After the last event it has to be
// quiet for settle until it is read; but under constant change it is read
// every settleMax.
const (
	settle    = 50 * time.Millisecond
	settleMax = 300 * time.Millisecond
)

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
	paths []string
	log   logrus.FieldLogger

	events *fsnotify.Watcher // nil: only polling
	dirs   map[string]fs.FileInfo

	folders map[string]bool // whose manifests are read
	names   map[string]bool // of which any change matters
}

func newWatcher(paths []string, notify func() (*fsnotify.Watcher, error), log logrus.FieldLogger) *watcher {
	w := &watcher{paths: paths, log: log, dirs: map[string]fs.FileInfo{}}
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
	w.log.WithError(err).Warn("manifests cannot be watched (see inotify(7) for limits): looking at them every second")
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
		if info, err := os.Lstat(e.abs); err == nil && info.Mode()&fs.ModeSymlink != 0 {
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
// settled, or when again is set and it is time to confirm doubts; and false when
// ctx has ended.
func (w *watcher) wait(ctx context.Context, l listing, again bool) bool {
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
	if again {
		confirmed = time.After(confirm)
	}
	var deadline time.Time // until which it has to settle
	changed := func() {
		now := time.Now()
		if deadline.IsZero() {
			deadline = now.Add(settleMax)
		}
		settled = time.After(min(settle, deadline.Sub(now)))
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-confirmed:
			return true
		case <-settled:
			return true
		case e := <-events:
			if w.matters(e.Name) {
				changed()
			}
		case err := <-errs: // mostly that there were more events than it could hold
			w.log.WithError(err).Debug("watching manifests")
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
