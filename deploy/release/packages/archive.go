package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// entry is a file of an archive. None is a link: krew, which installs from archives, does not
// support links, and on Windows they require a privilege.
type entry struct {
	name, from string
	mode       fs.FileMode
}

// archive writes the archive with the programs of a platform: a .zip for Windows, a .tar.gz elsewhere. All files are
// in one folder. It returns the archive's name.
func (r *release) archive(p program, licences string) (name string, err error) {
	source := func(name string) string { return filepath.Join(r.source, filepath.FromSlash(name)) }
	entries := []entry{
		{name: "usher", from: p.file, mode: 0o755},
		{name: "kubectl-usher", from: p.kubectl(), mode: 0o755},
		{name: "LICENSE", from: source("LICENSE"), mode: 0o644},
		{name: "THIRD_PARTY_LICENSES", from: licences, mode: 0o644},
		{name: "README.md", from: source("README.md"), mode: 0o644},
		{name: "CHANGELOG.md", from: source("CHANGELOG.md"), mode: 0o644},
	}
	if p.os == "windows" {
		entries[0].name, entries[1].name = "usher.exe", "kubectl-usher.exe"
	}
	if p.os == "linux" {
		entries = append(entries, entry{name: "systemd/usher.service", from: source("deploy/systemd/usher.service"), mode: 0o644},
			entry{name: "systemd/usher.env", from: source("deploy/systemd/usher.env"), mode: 0o644})
	}
	for _, folder := range []string{completions, manual} {
		files, err := os.ReadDir(filepath.Join(r.staged, folder)) // by name
		if err != nil {
			return "", err
		}
		for _, f := range files {
			entries = append(entries, entry{name: path.Join(folder, f.Name()), from: filepath.Join(r.staged, folder, f.Name()), mode: 0o644})
		}
	}
	top := r.name(p)
	for i := range entries {
		entries[i].name = path.Join(top, entries[i].name)
	}

	write, name := r.tar, top+".tar.gz"
	if p.os == "windows" {
		write, name = r.zip, top+".zip"
	}
	out, err := os.Create(filepath.Join(r.out, name))
	if err != nil {
		return "", err
	}
	defer out.Close()
	if err := write(out, entries); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return name, out.Close()
}

func (r *release) tar(out io.Writer, entries []entry) error {
	compress := gzip.NewWriter(out)
	w := tar.NewWriter(compress)
	for _, e := range entries {
		content, err := os.ReadFile(e.from)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: e.name, Mode: int64(e.mode), Size: int64(len(content)), ModTime: r.time, Format: tar.FormatUSTAR}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(content); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return compress.Close()
}

func (r *release) zip(out io.Writer, entries []entry) error {
	w := zip.NewWriter(out)
	for _, e := range entries {
		content, err := os.ReadFile(e.from)
		if err != nil {
			return err
		}
		header := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: r.time.UTC()}
		header.SetMode(e.mode)
		f, err := w.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := f.Write(content); err != nil {
			return err
		}
	}
	return w.Close()
}
