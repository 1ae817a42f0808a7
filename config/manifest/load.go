package manifest

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/usherproxy/usher/config"
)

// confirm is how long a file has to be gone, or to say nothing at all, until
// that is believed: editors and copying programs make files vanish or be empty
// for a moment.
const confirm = 200 * time.Millisecond

// loader reads files and remembers what they said.
type loader struct {
	paths    []string
	maxSize  int
	resolver *resolver
	files    map[string]*file // by absolute path
	listing  listing          // as of the last load
}

// file is what is remembered of a file.
type file struct {
	path     string
	sum      [sha256.Size]byte // of what it contained when it was last read; zero if it could not be read
	info     fs.FileInfo       // of when it was last read; nil if what it contained then may have changed unseen
	objects  []object
	errors   []Diagnostic
	warnings []Diagnostic
	doubted  time.Time // since when it is gone or says nothing; zero if it is not
}

// loaded is the outcome of a load.
type loaded struct {
	resolution
	changed map[string]bool // files that were read anew, by the path that diagnostics name
	doubts  bool            // there is something to be confirmed by a load somewhat later
}

// load reads what has changed, and makes the model anew.
func (l *loader) load(now time.Time) loaded {
	l.listing = list(l.paths)
	out := loaded{changed: map[string]bool{}}
	here := map[string]bool{}
	for _, e := range l.listing.entries {
		here[e.abs] = true
		l.visit(e, now, &out)
	}
	for abs, f := range l.files {
		if here[abs] || l.listing.covers(abs) {
			continue
		}
		if f.gone(now, &out) {
			delete(l.files, abs)
		}
	}

	var objects []object
	files := slices.SortedFunc(maps.Values(l.files), func(a, b *file) int { return cmp.Compare(a.path, b.path) })
	for _, f := range files {
		objects = append(objects, f.objects...)
	}
	out.resolution = l.resolver.resolve(objects)
	errs, warnings := slices.Clone(l.listing.problems), []Diagnostic(nil)
	for _, f := range files {
		errs, warnings = append(errs, f.errors...), append(warnings, f.warnings...)
	}
	out.errors = sortDiagnostics(append(errs, out.errors...))
	out.warnings = sortDiagnostics(append(warnings, out.warnings...))
	return out
}

// visit reads one file, unless its content is what it was.
func (l *loader) visit(e entry, now time.Time, out *loaded) {
	f := l.files[e.abs]
	known := f != nil
	if !known {
		f = &file{path: e.path}
	}
	if known && f.untouched(e) {
		f.doubted = time.Time{}
		return
	}
	data, err := readFile(e.path, l.maxSize)
	if errors.Is(err, fs.ErrNotExist) {
		if known && f.gone(now, out) {
			delete(l.files, e.abs)
		}
		return
	}
	l.files[e.abs] = f
	if err != nil { // what it said last still holds
		f.sum, f.errors, f.warnings, f.doubted = [sha256.Size]byte{}, []Diagnostic{{File: e.path, Err: err}}, nil, time.Time{}
		f.info = nil
		return
	}
	sum := sha256.Sum256(data)
	if known && sum == f.sum {
		f.doubted, f.info = time.Time{}, settled(e, now)
		return
	}
	r := read(e.path, data, l.resolver.nets, l.maxSize)
	if known && len(f.objects) > 0 && silent(r) && !f.gone(now, out) {
		return
	}
	out.changed[e.path] = true
	*f = file{path: e.path, sum: sum, info: settled(e, now), objects: remember(f.objects, r), errors: r.errors, warnings: r.warnings}
}

// untouched reports whether the file of e is known to be as it was when f was
// read, without reading it again.
func (f *file) untouched(e entry) bool { return f.info != nil && sameFile(f.info, e.info) }

// settled returns e.info if the file, which is read at now, cannot change after
// that and keep its time of modification: some file systems tell that in steps
// of two seconds.
func settled(e entry, now time.Time) fs.FileInfo {
	if now.Sub(e.info.ModTime()) <= 2*time.Second {
		return nil
	}
	return e.info
}

// silent reports whether a file says nothing, not even something wrong.
func silent(r reading) bool {
	return len(r.objects) == 0 && len(r.errors) == 0 && len(r.warnings) == 0
}

// gone reports whether it is to be believed that f is gone or empty.
func (f *file) gone(now time.Time, out *loaded) bool {
	if f.doubted.IsZero() {
		f.doubted = now
	}
	if len(f.objects) == 0 || now.Sub(f.doubted) >= confirm {
		return true
	}
	out.doubts = true
	return false
}

// same reports whether a and b were made at once, without looking at all that is
// in them.
func same(a, b config.Service) bool {
	if a.Discovery != nil {
		return a.Discovery == b.Discovery
	}
	return len(a.Ports) == len(b.Ports) && len(a.Ports) > 0 && &a.Ports[0] == &b.Ports[0]
}

// changes returns the Services of now that are not as they were before, and
// those that are gone, with nothing but their names; sorted by name.
func changes(before, now map[name]config.Service) []config.Service {
	var out []config.Service
	for n, svc := range now {
		if old, ok := before[n]; !ok || !same(old, svc) && !equal(old, svc) {
			out = append(out, svc)
		}
	}
	for n := range before {
		if _, ok := now[n]; !ok {
			out = append(out, config.Service{Name: n})
		}
	}
	slices.SortFunc(out, func(a, b config.Service) int {
		return cmp.Or(cmp.Compare(a.Name.Namespace, b.Name.Namespace), cmp.Compare(a.Name.Name, b.Name.Name))
	})
	return out
}

// remember returns the objects of a file that said old before and says now
// what is in r. It is where mistakes lose their force:
//
//   - An object that has a good definition is as it says now.
//   - An object that has none, but a bad one, stays as it was.
//   - An object that is not mentioned is gone; but not as long as something in
//     the file cannot be read, since it may be in there.
func remember(old []object, r reading) []object {
	defined := map[key]bool{}
	for _, o := range r.objects {
		defined[o.key] = true
	}
	out := slices.Clip(r.objects)
	for _, o := range old {
		if !defined[o.key] && (r.unreadable || slices.Contains(r.spoiled, o.key)) {
			out = append(out, o)
		}
	}
	return out
}
