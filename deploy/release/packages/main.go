package main

import (
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/usherproxy/usher/deploy/release/sbom"
)

func main() {
	var r release
	flag.StringVar(&r.version, "version", "", "`version` of the release, such as v1.2.3 or v1.2.3-rc.1")
	flag.StringVar(&r.source, "source", "", "`folder` with usher's sources")
	flag.StringVar(&r.binaries, "binaries", "", "`folder` with the programs for each platform: linux-amd64/usher, linux-amd64/kubectl-usher and so on")
	flag.StringVar(&r.out, "out", "", "`folder` to write to; what is in it stays")
	check := flag.Bool("check", false, "make nothing: say whether -source is fit for a release of -version")
	flag.Parse()
	if flag.NArg() > 0 {
		fail(fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}
	if *check {
		_, err := r.check()
		fail(err)
		return
	}
	fail(r.make())
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "packages:", err)
		os.Exit(1)
	}
}

// release describes a release, its inputs and outputs.
type release struct {
	version, source, binaries, out string

	programs []program
	commit   string
	time     time.Time         // of the commit
	staged   string            // a folder for intermediate files
	sources  map[string]string // see folders
}

// program is usher for one platform, with kubectl-usher in the same folder.
type program struct {
	file, os, arch string
	modules        []*debug.Module // linked into usher or kubectl-usher
}

// kubectl returns the path of kubectl-usher.
func (p program) kubectl() string { return filepath.Join(filepath.Dir(p.file), "kubectl-usher") }

// name returns the prefix of the names of a platform's files.
func (r *release) name(p program) string {
	return fmt.Sprintf("usher_%s_%s_%s", r.version, p.os, p.arch)
}

// check returns the notes of the release, or an error if the sources do not match its version. It needs no programs.
func (r *release) check() (notes string, err error) {
	if !semver.IsValid(r.version) || semver.Canonical(r.version) != r.version {
		return "", fmt.Errorf("VERSION: %q is not like v1.2.3 or v1.2.3-rc.1 (https://semver.org, with a v before); v0.0.0-dev will do to try it", r.version)
	}
	if notes, err = r.notes(); err != nil {
		return "", err
	}
	return notes, r.deployed()
}

func (r *release) make() error {
	for name, folder := range map[string]string{"source": r.source, "binaries": r.binaries, "out": r.out} {
		if folder == "" {
			return fmt.Errorf("-%s: no folder given", name)
		}
	}
	notes, err := r.check()
	if err != nil {
		return err
	}
	if err := r.findPrograms(); err != nil {
		return err
	}
	if r.staged, err = os.MkdirTemp("", "usher-release-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.staged)
	if err := r.document(); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	var made []string
	for _, p := range r.programs {
		files, err := r.platform(p)
		if err != nil {
			return fmt.Errorf("%s/%s: %w", p.os, p.arch, err)
		}
		made = append(made, files...)
	}
	manifest, err := r.krew()
	if err != nil {
		return err
	}
	if err := r.checksums(append(made, manifest...)); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, "notes.md"), []byte(notes), 0o644)
}

// findPrograms finds the programs, and the build information that Go recorded in them.
func (r *release) findPrograms() error {
	files, err := filepath.Glob(filepath.Join(r.binaries, "*-*", "usher"))
	if err != nil {
		return err
	}
	for _, file := range files { // by name
		p := program{file: file}
		for _, file := range []string{p.file, p.kubectl()} {
			if err := r.read(&p, file); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
		}
		r.programs = append(r.programs, p)
	}
	if len(r.programs) == 0 {
		return fmt.Errorf("-binaries: there is no program %s", filepath.Join(r.binaries, "OS-ARCH", "usher"))
	}
	return nil
}

// read adds to p the build information of one of its files.
func (r *release) read(p *program, file string) error {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return err
	}
	noted := map[string]string{}
	for _, s := range info.Settings {
		noted[s.Key] = s.Value
	}
	p.os, p.arch = noted["GOOS"], noted["GOARCH"]
	commit := noted["vcs.revision"]
	switch {
	case p.os+"-"+p.arch != filepath.Base(filepath.Dir(file)):
		return fmt.Errorf("it is for %s/%s", p.os, p.arch)
	case commit == "":
		return errors.New("it does not say of which commit it is: build it from a clone, with -buildvcs=true")
	case noted["vcs.modified"] != "false":
		return errors.New("it was built with changes that are not committed: see git status")
	case r.commit != "" && commit != r.commit:
		return fmt.Errorf("it is of commit %s, and others are of %s", commit, r.commit)
	}
	for _, m := range info.Deps {
		if !slices.ContainsFunc(p.modules, func(o *debug.Module) bool { return o.Path == m.Path }) {
			p.modules = append(p.modules, m)
		}
	}
	r.commit = commit
	if r.time, err = time.Parse(time.RFC3339, noted["vcs.time"]); err != nil {
		return fmt.Errorf("vcs.time: %w", err)
	}
	return nil
}

// here runs the program of this name for this platform, and returns its output.
func (r *release) here(name string, args ...string) ([]byte, error) {
	i := slices.IndexFunc(r.programs, func(p program) bool { return p.os == runtime.GOOS && p.arch == runtime.GOARCH })
	if i < 0 {
		return nil, fmt.Errorf("-binaries: the program for this platform is needed, too: %s-%s/usher", runtime.GOOS, runtime.GOARCH)
	}
	file := filepath.Join(filepath.Dir(r.programs[i].file), name)
	out, err := exec.Command(file, args...).Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = fmt.Errorf("%w: %s", err, failed.Stderr)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", file, strings.Join(args, " "), err)
	}
	return out, nil
}

// platform writes the files for one platform, and returns their names.
func (r *release) platform(p program) ([]string, error) {
	licences, err := r.licences(p)
	if err != nil {
		return nil, err
	}
	archive, err := r.archive(p, licences)
	if err != nil {
		return nil, err
	}
	made := []string{archive}
	for file, name := range map[string]string{p.file: r.name(p), p.kubectl(): "kubectl-" + r.name(p)} {
		bill, err := r.bill(file, name+".spdx.json")
		if err != nil {
			return nil, err
		}
		made = append(made, bill)
	}
	if p.os == "linux" {
		packages, err := r.packages(p, licences)
		if err != nil {
			return nil, err
		}
		made = append(made, packages...)
	}
	return made, nil
}

// bill writes the bill of materials of a program.
func (r *release) bill(file, name string) (string, error) {
	doc, err := sbom.Program(file, r.version, r.time)
	if err != nil {
		return "", err
	}
	text, err := sbom.JSON(doc)
	if err != nil {
		return "", err
	}
	return name, os.WriteFile(filepath.Join(r.out, name), text, 0o644)
}
