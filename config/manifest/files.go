package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// entry is a file to be read.
type entry struct {
	path string // as it is shown: what was given, with a file name behind a folder's
	abs  string
	info fs.FileInfo
	link bool // in a folder, and a symbolic link
}

// listing is what files there are.
type listing struct {
	entries []entry // in the order of their names, each once

	// problems are paths that could not be listed.
	problems []Diagnostic

	// unknown are the folders (absolute) whose files are not known, since they
	// could not be read for another reason than that they do not exist.
	unknown []string

	// empty are folders in which no file is read.
	empty []string
}

// list finds the files that paths stand for: a file for itself, a folder for the
// manifests in it.
func list(paths []string) listing {
	var out listing
	for _, p := range paths {
		abs := absolute(p)
		info, err := os.Stat(p)
		switch {
		case err != nil:
			out.fail(p, abs, err)
		case !info.IsDir():
			out.entries = append(out.entries, entry{path: p, abs: abs, info: info})
		default:
			out.folder(p, abs)
		}
	}
	slices.SortStableFunc(out.entries, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	seen := map[string]bool{}
	out.entries = slices.DeleteFunc(out.entries, func(e entry) bool {
		twice := seen[e.abs]
		seen[e.abs] = true
		return twice
	})
	return out
}

func (l *listing) folder(path, abs string) {
	found, err := os.ReadDir(path)
	if err != nil {
		l.fail(path, abs, err)
		return
	}
	before := len(l.entries)
	defer func() {
		if len(l.entries) == before {
			l.empty = append(l.empty, path)
		}
	}()
	for _, f := range found {
		if !isManifest(f.Name()) {
			continue
		}
		name := filepath.Join(path, f.Name())
		// Stat follows links: a ConfigMap that is mounted consists of them. What
		// it cannot find was deleted just now, or is a link that leads nowhere.
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() {
			l.entries = append(l.entries, entry{name, filepath.Join(abs, f.Name()), info, f.Type()&fs.ModeSymlink != 0})
		}
	}
}

func (l *listing) fail(path, abs string, err error) {
	l.problems = append(l.problems, Diagnostic{File: path, Err: cause(err)})
	if !errors.Is(err, fs.ErrNotExist) {
		l.unknown = append(l.unknown, abs)
	}
}

// covers reports whether it is unknown if the file abs still exists.
func (l *listing) covers(abs string) bool {
	return slices.ContainsFunc(l.unknown, func(p string) bool { return abs == p || filepath.Dir(abs) == p })
}

// same reports whether l and other hold the same files, as far as can be told
// without reading them.
func (l *listing) same(other listing) bool {
	return len(l.problems) == len(other.problems) && slices.EqualFunc(l.entries, other.entries, func(a, b entry) bool {
		return a.path == b.path && sameFile(a.info, b.info)
	})
}

// sameFile reports whether a file is as it was, as far as can be told without
// reading it.
func sameFile(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// isManifest reports whether a file of that name in a folder is read. Names that
// begin with a dot are what editors and ConfigMaps work with.
func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// readFile reads a file that may not be larger than maxSize.
func readFile(path string, maxSize int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	var b bytes.Buffer
	if info, err := f.Stat(); err == nil { // or it grows step by step
		b.Grow(int(min(info.Size(), int64(maxSize))) + bytes.MinRead)
	}
	_, err = b.ReadFrom(io.LimitReader(f, int64(maxSize)+1))
	data := b.Bytes()
	switch {
	case err != nil:
		return nil, cause(err)
	case len(data) > maxSize:
		return nil, tooBig(maxSize)
	}
	return data, nil
}

func tooBig(maxSize int) error {
	return fmt.Errorf("file too large: at most %d bytes per file; split it into several files", maxSize)
}

// cause takes the path out of an error, since it is shown already.
func cause(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// absolute returns the absolute form of path, by which files are told apart.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return filepath.Clean(path)
}
