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
	path string // as displayed: the given path, with a file name appended for a folder
	abs  string
	info fs.FileInfo
	link bool // in a folder, and a symbolic link
}

// listing is the list of existing files.
type listing struct {
	entries []entry // sorted by name, without duplicates

	// problems are paths that could not be listed.
	problems []Diagnostic

	// unknown are the absolute paths of files and folders that could not be examined, although they may exist.
	unknown []string

	// empty are folders in which no file is read.
	empty []string
}

// list returns the files at paths: each file itself, and the manifests in each folder.
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
		// Stat follows links: a mounted ConfigMap consists of them.
		switch info, err := os.Stat(name); {
		case errors.Is(err, fs.ErrNotExist): // the file was deleted just now, or is a broken link
		case err != nil:
			l.fail(name, filepath.Join(abs, f.Name()), err)
		case info.Mode().IsRegular():
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

// covers reports whether the unlisted file abs may exist, since it or its folder could not be examined.
func (l *listing) covers(abs string) bool {
	return slices.ContainsFunc(l.unknown, func(p string) bool { return abs == p || filepath.Dir(abs) == p })
}

// same reports whether l and other have the same files, as far as visible without reading them.
func (l *listing) same(other listing) bool {
	return len(l.problems) == len(other.problems) && slices.EqualFunc(l.entries, other.entries, func(a, b entry) bool {
		return a.path == b.path && sameFile(a.info, b.info)
	})
}

// sameFile reports whether a file is unchanged, as far as visible without reading it.
func sameFile(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// isManifest reports whether a file of that name in a folder is read. Editors and ConfigMaps use names that begin with
// a dot.
func isManifest(name string) bool {
	return !strings.HasPrefix(name, ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
}

// readFile reads a file of at most maxSize bytes.
func readFile(path string, maxSize int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	var b bytes.Buffer
	if info, err := f.Stat(); err == nil { // avoids growing the buffer step by step
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

// cause removes the path from an error, since it is already shown.
func cause(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	return err
}

// absolute returns the absolute form of path, which identifies files.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return filepath.Clean(path)
}
