package main

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"
)

//go:embed debian.lock
var lockText []byte

// architectures are the architectures of the image, by the names that Go and Debian share.
var architectures = []string{"amd64", "arm64"}

func main() {
	var (
		lock     = flag.String("lock", "", "write the lock anew to this `file`, with the packages that Debian has now, and end")
		cache    = flag.String("cache", "", "`folder` in which Debian's packages are kept")
		binaries = flag.String("binaries", "", "`folder` with the program for each architecture: linux-amd64/usher, linux-arm64/usher")
		out      = flag.String("out", "", "`file` to write: the archive; beside it, FILE.ARCH.spdx.json")
		root     = flag.String("root", "", "instead of an archive, write the layers of the image for -arch to this `folder`, for the Dockerfile: base.tar and usher.tar")
		arch     = flag.String("arch", "", "`architecture` for -root")
		name     = flag.String("name", "ghcr.io/usherproxy/usher", "`repository` that the image is for")
		version  = flag.String("version", "", "its tag")
		revision = flag.String("revision", "", "the `commit` it is built from")
		created  time.Time
	)
	flag.TextVar(&created, "created", created, "the `time` of that commit, as in RFC 3339")
	flag.Parse()
	of := label{repository: *name, version: *version, revision: *revision, created: created.UTC()}
	var err error
	switch {
	case flag.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flag.Arg(0))
	case *cache == "":
		err = fmt.Errorf("-cache: no folder given")
	case *lock != "":
		err = writeLock(*lock, *cache)
	case *binaries == "" || (*out == "") == (*root == ""):
		err = fmt.Errorf("-binaries, and one of -out and -root, have to be given")
	case *root != "" && !slices.Contains(architectures, *arch):
		err = fmt.Errorf("-arch: invalid value %q: must be one of %s", *arch, architectures)
	case !regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`).MatchString(*version): // distribution-spec, "Pulling manifests"
		err = fmt.Errorf("-version: %q cannot be a tag: letters, digits and ._- are allowed, 128 at the most", *version)
	case created.Unix() < 0:
		err = fmt.Errorf("-created: there is no time, or one before 1970")
	case *root != "":
		err = stage(*cache, *binaries, *root, *arch, of)
	default:
		err = build(*cache, *binaries, *out, of)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// build writes the archive, and prints its digest.
func build(cache, binaries, out string, of label) error {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	var images []platformImage
	for _, arch := range architectures {
		files, err := of.contents(cache, binaries, arch)
		if err != nil {
			return err
		}
		if err := os.WriteFile(out+"."+arch+".spdx.json", files.bill, 0o644); err != nil {
			return err
		}
		image, err := of.image(arch, files)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		images = append(images, image)
	}
	return of.write(out, images)
}

// stage writes the layers of the image for an architecture into a folder, as base.tar and usher.tar.
func stage(cache, binaries, folder, arch string, of label) error {
	files, err := of.contents(cache, binaries, arch)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for name, text := range map[string][]byte{"base.tar": files.lower, "usher.tar": files.upper} {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
