package manifest

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

// loader reads files and remembers their content.
type loader struct {
	paths    []string
	debounce debounce
	resolver *resolver
	files    map[string]*file // by absolute path
	read     map[string]bool  // see loaded
}

// file is the remembered state of a file.
type file struct {
	path      string
	sum       uint64      // of its content when last read; zero if it could not be read
	info      fs.FileInfo // from when it was last read
	sure      bool        // unchanged info proves unchanged content
	objects   []*object
	documents []document
	errors    []Diagnostic
	warnings  []Diagnostic
	lacks     missing
	doubted   time.Time // since when it is missing or empty; zero if it is neither
}

// missing has the objects that a file may define in addition to those that were read from it.
type missing struct {
	spoiled    map[key]bool // objects that it defines with an error
	unreadable bool         // some part cannot be read, and may define any object
}

// loaded is the result of a load.
type loaded struct {
	changed          []config.Service
	errors, warnings []Diagnostic
	read             map[string]bool // files read since the last load, by their path in diagnostics
	doubts           bool            // some file seems missing or empty, which a later load must confirm
}

// input is the file name in diagnostics for the Input that take reads.
const input = "standard input"

// take reads from as an additional file, which never changes.
func (l *loader) take(from io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(from, maxFileSize+1))
	if err != nil {
		return fmt.Errorf("reading manifests: %w", err)
	}
	found := read(input, data, reading{}, l.resolver.nets, maxFileSize)
	found.renumber()
	l.files[input] = &file{path: input, objects: found.objects, errors: found.errors, warnings: found.warnings, lacks: missing{found.spoiled, found.unreadable}}
	l.resolver.replace(nil, found.objects)
	return nil
}

// load reads the existing files that have changed, and recomputes the model for them.
func (l *loader) load(there listing, now time.Time) (out loaded) {
	here := map[string]bool{}
	var differ []entry
	for _, e := range there.entries {
		here[e.abs] = true
		if f := l.files[e.abs]; f != nil && f.sure && sameFile(f.info, e.info) {
			f.doubted = time.Time{}
		} else {
			differ = append(differ, e)
		}
	}
	looks := make([]look, len(differ))
	translate.Parallel(len(differ), func(i int) { looks[i] = l.look(differ[i]) })
	for i, e := range differ {
		l.applyLook(e, looks[i], now, &out)
	}
	for abs, f := range l.files {
		if abs != input && !here[abs] && !there.covers(abs) && l.confirmMissing(f, now, &out) {
			l.forget(abs)
		}
	}

	out.changed = l.resolver.resolve()
	out.errors, out.warnings = l.resolver.diagnostics()
	errs, warnings := slices.Clone(there.problems), []Diagnostic(nil)
	for _, f := range l.files {
		errs, warnings = append(errs, f.errors...), append(warnings, f.warnings...)
	}
	out.errors = sortDiagnostics(append(errs, out.errors...))
	out.warnings = sortDiagnostics(append(warnings, out.warnings...))
	out.read, l.read = l.read, nil
	return out
}

// look is the result of reading a file.
type look struct {
	sum  uint64
	same bool // the content is as when it was last read
	reading
	err error
}

// look reads one file, and decodes it unless its content is unchanged. Several goroutines call it, for different files.
func (l *loader) look(e entry) look {
	data, err := readFile(e.path, maxFileSize)
	if err != nil {
		return look{err: err}
	}
	out := look{sum: maphash.Bytes(seed, data)}
	f := l.files[e.abs]
	if f == nil || f.path != e.path { // its objects name the other path
		f = &file{}
	}
	if out.same = f.sum == out.sum; !out.same {
		out.reading = read(e.path, data, reading{objects: f.objects, documents: f.documents}, l.resolver.nets, maxFileSize)
	}
	return out
}

// applyLook applies the result of reading a file, unless a later load must confirm it.
func (l *loader) applyLook(e entry, look look, now time.Time, out *loaded) {
	f := l.files[e.abs]
	known := f != nil
	if !known {
		f = &file{path: e.path}
	}
	if errors.Is(look.err, fs.ErrNotExist) {
		if known && l.confirmMissing(f, now, out) {
			l.forget(e.abs)
		}
		return
	}
	l.files[e.abs] = f
	if look.err != nil { // its last content stays in effect
		f.sum, f.errors, f.warnings, f.doubted = 0, []Diagnostic{{File: e.path, Err: look.err}}, nil, time.Time{}
		f.sure, f.lacks.unreadable = false, true
		return
	}
	if known && !look.same && len(f.objects) > 0 && silent(look.reading) && !l.confirmMissing(f, now, out) {
		return
	}
	f.info, f.sure, f.doubted = e.info, settled(e, now), time.Time{}
	if look.same {
		return
	}
	before := f.objects
	f.path, f.sum, f.documents = e.path, look.sum, look.documents
	f.objects, f.errors, f.warnings = remember(before, look.reading), look.errors, look.warnings
	f.lacks = missing{look.spoiled, look.unreadable}
	look.renumber()
	l.resolver.replace(before, f.objects)
	if l.read == nil {
		l.read = map[string]bool{}
	}
	l.read[e.path] = true
}

// forget removes a file and its objects.
func (l *loader) forget(abs string) {
	l.resolver.replace(l.files[abs].objects, nil)
	delete(l.files, abs)
}

// settled reports whether any change of the file after now would change its modification time. Some file systems store
// that time in steps of two seconds.
func settled(e entry, now time.Time) bool { return now.Sub(e.info.ModTime()) > 2*time.Second }

// silent reports whether a file has no content, not even with errors.
func silent(r reading) bool {
	return len(r.objects) == 0 && len(r.errors) == 0 && len(r.warnings) == 0
}

// confirmMissing reports whether f, which is now missing or empty, has been so for debounce.confirm, or has no objects
// to lose. Otherwise it requests a later load, to confirm it.
func (l *loader) confirmMissing(f *file, now time.Time, out *loaded) bool {
	if f.doubted.IsZero() {
		f.doubted = now
	}
	if len(f.objects) == 0 || now.Sub(f.doubted) >= l.debounce.confirm {
		return true
	}
	out.doubts = true
	return false
}

// remember returns the objects of a file with the previous objects old and the new reading r. It limits the effect of
// errors:
//
//   - An object with a valid definition has its new version.
//   - An object with only an invalid definition keeps its old version.
//   - An object without a definition is removed, unless some part of the file cannot be read: that part may define it.
func remember(old []*object, r reading) []*object {
	defined := make(map[key]bool, len(r.objects))
	if r.unreadable || len(r.spoiled) > 0 {
		for _, o := range r.objects {
			defined[o.key] = true
		}
	}
	out := slices.Clip(r.objects)
	for _, o := range old {
		if (r.unreadable || r.spoiled[o.key]) && !defined[o.key] {
			out = append(out, o)
		}
	}
	return out
}
