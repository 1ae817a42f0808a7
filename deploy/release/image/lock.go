package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// asked are the packages of the image, which also gets files of their dependencies.
var asked = []string{"iptables", "nftables", "netbase", "ca-certificates", "base-files"}

// sources are the package sources for apt, of the release that base-files is from.
const sources = `deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian-security bookworm-security main
`

// A locked package is one file of Debian's archive.
type locked struct {
	arch   string // of the image; the package may be for all
	path   string // below the archive's root: debian/pool/…
	sha256 string
}

// A lock lists the packages of the image.
type lock struct {
	taken    time.Time // when Debian had them; snapshot.debian.org has them for that time
	packages []locked
}

// timeFormat is snapshot.debian.org's time format.
const timeFormat = "20060102T150405Z"

func parseLock(r io.Reader) (*lock, error) {
	l := &lock{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) == 0 || fields[0] == "#":
		case len(fields) == 2 && fields[0] == "taken":
			var err error
			if l.taken, err = time.Parse(timeFormat, fields[1]); err != nil {
				return nil, fmt.Errorf("debian.lock, line %d: %w", n, err)
			}
		case len(fields) == 3 && len(fields[2]) == 2*sha256.Size:
			l.packages = append(l.packages, locked{arch: fields[0], path: fields[1], sha256: fields[2]})
		default:
			return nil, fmt.Errorf("debian.lock, line %d: want \"taken TIME\", or architecture, path and SHA-256: %q", n, lines.Text())
		}
	}
	if l.taken.IsZero() {
		return nil, fmt.Errorf("debian.lock: there is no line \"taken TIME\"")
	}
	return l, lines.Err()
}

// fetch returns the packages for an architecture, and caches them in the folder.
func (l *lock) fetch(folder, arch string) (packages []*debianPackage, err error) {
	for _, p := range l.packages {
		if p.arch != arch {
			continue
		}
		text, err := p.fetch(folder, l.urls(p)...)
		if err != nil {
			return nil, err
		}
		unpacked, err := unpack(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.path, err)
		}
		unpacked.locked = p
		packages = append(packages, unpacked)
	}
	return packages, nil
}

// urls returns the locations of a package: Debian's archive, and a snapshot of it from the time of the lock.
func (l *lock) urls(p locked) []string {
	archive, path, _ := strings.Cut(p.path, "/")
	return []string{
		"http://deb.debian.org/" + p.path,
		"https://snapshot.debian.org/archive/" + archive + "/" + l.taken.Format(timeFormat) + "/" + path,
	}
}

// fetch returns the package's bytes, from the folder or the first of the URLs that has them. It verifies them against
// the lock, wherever they come from.
func (p locked) fetch(folder string, urls ...string) ([]byte, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	file := filepath.Join(folder, p.sha256+".deb")
	if text, err := os.ReadFile(file); err == nil && p.is(text) {
		return text, nil
	}
	var because []error
	for try := range tries {
		if try > 0 {
			time.Sleep(pause)
		}
		because = nil
		for _, url := range urls {
			text, err := get(url)
			switch {
			case err != nil:
			case !p.is(text):
				err = fmt.Errorf("%s: it is not what debian.lock names", url)
			default:
				return text, os.WriteFile(file, text, 0o644)
			}
			because = append(because, err)
		}
	}
	return nil, fmt.Errorf("no package for debian.lock; if Debian has a newer one, `make image-lock` takes that: %w", errors.Join(because...))
}

func (p locked) is(text []byte) bool {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]) == p.sha256
}

// An archive that does not respond once may do so soon after.
const (
	tries = 3
	pause = 2 * time.Second
)

// maxPackage limits a download, in bytes: the largest package, libc6, has 3 MB.
const maxPackage = 64 << 20

func get(url string) ([]byte, error) {
	client := &http.Client{Timeout: 2 * time.Minute}
	response, err := client.Get(url)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, maxPackage))
}

// writeLock writes a lock with Debian's current packages. apt gets dedicated folders: it neither reads nor
// changes this machine's installed packages and sources.
func writeLock(file, cache string) error {
	now := &lock{taken: time.Now().UTC()}
	for _, arch := range architectures {
		list, err := resolve(arch)
		if err != nil {
			return err
		}
		now.packages = append(now.packages, list...)
	}
	out := &strings.Builder{}
	fmt.Fprintf(out, "# The packages of Debian's that the image has files of. `make image-lock` writes this anew.\ntaken %s\n", now.taken.Format(timeFormat))
	for _, arch := range architectures {
		packages, err := now.fetch(cache, arch)
		if err != nil {
			return err
		}
		_, used, err := rootfs(packages) // drops openssl, needed only by ca-certificates' scripts
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		for _, p := range used {
			fmt.Fprintln(out, p.arch, p.path, p.sha256)
		}
	}
	return os.WriteFile(file, []byte(out.String()), 0o644)
}

// resolve returns the packages and their dependencies, as apt resolves them with nothing installed.
func resolve(arch string) (list []locked, err error) {
	dir, err := os.MkdirTemp("", "apt-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for _, folder := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			return nil, err
		}
	}
	config := fmt.Sprintf(`Dir::State "%[1]s/state"; Dir::State::status "%[1]s/status"; Dir::Cache "%[1]s/cache";
Dir::Etc::sourcelist "%[1]s/sources.list"; Dir::Etc::sourceparts "/dev/null"; Dir::Etc::preferencesparts "/dev/null"; Dir::Etc::parts "/dev/null"; Dir::Etc::main "/dev/null";
APT::Architecture "%[2]s"; APT::Architectures { "%[2]s"; }; APT::Sandbox::User ""; APT::Install-Recommends "false";
Acquire::Languages "none"; Acquire::ForceHash "SHA256";
`, dir, arch)
	for name, text := range map[string]string{"apt.conf": config, "sources.list": sources, "status": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	apt := func(args ...string) (string, error) {
		cmd := exec.Command("apt-get", args...)
		cmd.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(dir, "apt.conf"), "LC_ALL=C")
		cmd.Stderr = os.Stderr
		text, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("apt-get %s: %w", args[0], err)
		}
		return string(text), nil
	}
	if _, err := apt("update", "-qq"); err != nil {
		return nil, err
	}
	text, err := apt(append([]string{"install", "-y", "--print-uris"}, asked...)...)
	if err != nil {
		return nil, err
	}
	for _, m := range regexp.MustCompile(`(?m)^'http://deb\.debian\.org/([^']+)' \S+ \d+ SHA256:([0-9a-f]{64})$`).FindAllStringSubmatch(text, -1) {
		list = append(list, locked{arch: arch, path: m[1], sha256: m[2]})
	}
	if len(list) < len(asked) {
		return nil, fmt.Errorf("apt-get install --print-uris: there are not all of %s: %s", asked, text)
	}
	return list, nil
}
