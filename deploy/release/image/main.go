package main

import (
	"bytes"
	_ "embed"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

//go:embed debian.lock
var lockText []byte

// architectures are those that the image has, as Go and Debian both call them.
var architectures = []string{"amd64", "arm64"}

func main() {
	var (
		lock     = flag.String("lock", "", "write the lock anew to this `file`, with the packages that Debian has now, and end")
		cache    = flag.String("cache", "", "`folder` in which Debian's packages are kept")
		binaries = flag.String("binaries", "", "`folder` with the program for each architecture: linux-amd64/usher, linux-arm64/usher")
		out      = flag.String("out", "", "`file` to write: the archive; beside it, FILE.ARCH.spdx.json")
		name     = flag.String("name", "ghcr.io/usherproxy/usher", "`repository` that the image is for")
		version  = flag.String("version", "", "its tag")
		revision = flag.String("revision", "", "the `commit` it is built from")
		created  = flag.Int64("created", 0, "the `time` of that commit, in seconds since 1970")
	)
	flag.Parse()
	var err error
	switch {
	case flag.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flag.Arg(0))
	case *cache == "":
		err = fmt.Errorf("-cache: no folder given")
	case *lock != "":
		err = writeLock(*lock, *cache)
	case *binaries == "" || *out == "":
		err = fmt.Errorf("-binaries and -out: both have to be given")
	case !regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`).MatchString(*version): // distribution-spec, "Pulling manifests"
		err = fmt.Errorf("-version: %q cannot be a tag: letters, digits and ._- are allowed, 128 at the most", *version)
	case *created <= 0:
		err = fmt.Errorf("-created: %d is not a time after 1970", *created)
	default:
		err = build(*cache, *binaries, *out, label{repository: *name, version: *version, revision: *revision, created: time.Unix(*created, 0).UTC()})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// build makes the archive, and prints its digest.
func build(cache, binaries, out string, of label) error {
	lock, err := parseLock(bytes.NewReader(lockText))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	var images []platformImage
	for _, arch := range architectures {
		packages, err := lock.fetch(cache, arch)
		if err != nil {
			return err
		}
		base, used, err := rootfs(packages)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		image, err := of.image(arch, base, lock.taken, used, filepath.Join(binaries, "linux-"+arch, "usher"), out)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		images = append(images, image)
	}
	return of.write(out, images)
}
