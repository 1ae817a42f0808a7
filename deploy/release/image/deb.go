package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/ulikunitz/xz"
)

// A debianPackage is the contents of a Debian package: deb(5).
type debianPackage struct {
	locked
	control string          // its paragraph
	files   map[string]file // by path without a leading slash; regular files and links
}

// field returns a field of the control paragraph, "" without it.
func (p *debianPackage) field(name string) string {
	for line := range strings.Lines(p.control) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// A file is a regular file, a folder, or, if link is set, a symbolic link.
type file struct {
	mode   int64 // in the form of tar
	text   []byte
	link   string
	folder bool
}

// unpack reads a package. It does not run the package's scripts.
func unpack(deb []byte) (*debianPackage, error) {
	p := &debianPackage{files: map[string]file{}}
	err := eachMember(deb, func(name string, text []byte) error {
		kind, compression, _ := strings.Cut(name, ".tar")
		if kind != "control" && kind != "data" {
			return nil
		}
		r, err := decompress(compression, text)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return eachFile(r, func(at string, f file) {
			switch {
			case kind == "data":
				p.files[merged(at)] = f
			case at == "control":
				p.control = strings.TrimSpace(string(f.text)) + "\n"
			}
		})
	})
	if err == nil && p.control == "" {
		err = fmt.Errorf("there is no control file in it")
	}
	return p, err
}

// eachMember calls f with the members of an ar archive.
func eachMember(archive []byte, f func(name string, text []byte) error) error {
	const magic, header = "!<arch>\n", 60
	rest, ok := bytes.CutPrefix(archive, []byte(magic))
	if !ok {
		return fmt.Errorf("it is not an ar archive")
	}
	for len(rest) >= header {
		name := strings.TrimRight(string(rest[:16]), " /")
		size, err := strconv.Atoi(strings.TrimSpace(string(rest[48:58])))
		if rest = rest[header:]; err != nil || size < 0 || size > len(rest) {
			return fmt.Errorf("the ar archive's member %q is broken off", name)
		}
		if err := f(name, rest[:size]); err != nil {
			return err
		}
		rest = rest[min(len(rest), size+size%2):]
	}
	return nil
}

func decompress(suffix string, text []byte) (io.Reader, error) {
	switch suffix {
	case ".xz":
		return xz.NewReader(bytes.NewReader(text))
	case ".gz":
		return gzip.NewReader(bytes.NewReader(text))
	}
	return nil, fmt.Errorf("a package of Debian's is compressed with xz or gzip")
}

// eachFile calls f with the regular files and symbolic links of a tar archive.
func eachFile(r io.Reader, f func(at string, file file)) error {
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		switch at := strings.TrimPrefix(path.Clean("/"+h.Name), "/"); h.Typeflag {
		case tar.TypeReg:
			text, err := io.ReadAll(archive)
			if err != nil {
				return fmt.Errorf("%s: %w", at, err)
			}
			f(at, file{mode: h.Mode & 0o777, text: text})
		case tar.TypeSymlink:
			f(at, file{mode: 0o777, link: h.Linkname})
		}
	}
}

// merged returns a file's path in Debian's merged /usr, which has /lib and /sbin; packages may name the old paths.
func merged(at string) string {
	switch top, _, _ := strings.Cut(at, "/"); top {
	case "bin", "sbin", "lib", "lib64":
		return "usr/" + at
	}
	return at
}
