package vm

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// programs are this machine's programs that the kernel, the checks and usher call.
var programs = []string{"modprobe", "ip",
	"iptables", "iptables-save", "iptables-restore", "iptables-nft", "iptables-nft-save", "iptables-nft-restore",
	"ip6tables", "ip6tables-save", "ip6tables-restore", "ip6tables-nft", "ip6tables-nft-save", "ip6tables-nft-restore",
	"iptables-legacy", "iptables-legacy-save", "iptables-legacy-restore", "ip6tables-legacy", "ip6tables-legacy-save", "ip6tables-legacy-restore"}

// plugins are the libraries that iptables loads with dlopen.
const plugins = "/usr/lib/*/xtables/*.so"

// libraries are the library folders of a foreign CPU architecture's programs. All of them are copied, since its ldd(1)
// does not run here.
var libraries = []string{"/lib/*.so*", "/lib/*-linux-gnu/*.so*", "/usr/lib/*-linux-gnu/*.so*"}

// moduleFiles are the kernel modules to copy, all those related to the network, and modprobe's lists of them.
var moduleFiles = []string{"modules.*", "kernel/net", "kernel/lib", "kernel/crypto", "kernel/arch/*/crypto", "kernel/drivers/net/*.ko*"}

// writeImage writes an initramfs in the format of the kernel's
// Documentation/driver-api/early-userspace/buffer-format.rst. It contains init, usher, the programs next to it, and
// copies of the files that they need from root, which is "" for this machine. Nothing is shared with it.
func writeImage(path, init, usher, modules, root string, beside ...string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	a := &archive{w: bufio.NewWriterSize(f, 1<<20), has: map[string]bool{}, root: root}
	a.copy("/init", init)
	a.copy(usherPath, usher)
	for _, program := range beside {
		a.copy(filepath.Join(filepath.Dir(usherPath), filepath.Base(program)), program)
	}
	for _, name := range programs {
		a.program(name)
	}
	own := []string{plugins}
	if root != "" {
		own = append(own, libraries...)
	}
	for _, pattern := range own {
		a.tree(root+pattern, func(path string) { a.same(strings.TrimPrefix(path, root)) })
	}
	for _, pattern := range moduleFiles {
		a.tree(filepath.Join(modules, pattern), func(path string) { // where modprobe searches
			a.copy(filepath.Join("/lib/modules", filepath.Base(modules), strings.TrimPrefix(path, modules)), path)
		})
	}
	for _, dir := range []string{"/proc", "/sys", "/run", "/tmp"} {
		a.dir(dir)
	}
	a.entry("/dev/console", 0o020600, 5<<8|1, nil)
	a.entry("TRAILER!!!", 0, 0, nil)
	return errors.Join(a.err, a.w.Flush())
}

// archive is an initramfs while it is written. It keeps the first error.
type archive struct {
	w    *bufio.Writer
	has  map[string]bool // paths
	root string          // folder of the files that have the same path in the archive
	err  error
}

// entry writes an entry, with mode and device as in stat(2), after its parent folders. Existing entries are kept.
func (a *archive) entry(path string, mode, device uint32, content []byte) {
	if a.has[path] || a.err != nil {
		return
	}
	a.has[path] = true
	if parent := filepath.Dir(path); parent != "/" && parent != "." {
		a.dir(parent)
	}
	name := strings.TrimPrefix(path, "/") + "\x00"
	fields := []any{len(a.has), mode, 0, 0, 1, 0, len(content), 0, 0, device >> 8, device & 0xff, len(name), 0}
	// Header with name, and content, are each padded to a multiple of four bytes.
	head := fmt.Sprintf("070701"+strings.Repeat("%08x", len(fields))+"%s", append(fields, name)...)
	for _, part := range [][]byte{[]byte(head), content} {
		_, _ = a.w.Write(part) // w keeps its error, for Flush
		_, _ = a.w.Write(make([]byte, -len(part)&3))
	}
}

func (a *archive) dir(path string) { a.entry(path, 0o040755, 0, nil) }

// copy adds a copy of a file.
func (a *archive) copy(path, from string) {
	content, err := os.ReadFile(from)
	a.err = errors.Join(a.err, err)
	a.entry(path, 0o100755, 0, content)
}

// same adds a file of the root under its path there, and, if it is a link, also under the link's target.
func (a *archive) same(path string) {
	real := path
	for {
		to, err := os.Readlink(a.root + real)
		if err != nil {
			break // not a link
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(real), to)
		}
		real = to
	}
	if real != path {
		a.entry(path, 0o120777, 0, []byte(real))
	}
	if !a.has[real] {
		a.copy(real, a.root+real)
	}
}

// tree calls add for the files that match a pattern, and for those in matching folders.
func (a *archive) tree(pattern string, add func(path string)) {
	matches, err := filepath.Glob(pattern)
	a.err = errors.Join(a.err, err)
	for _, match := range matches {
		a.err = errors.Join(a.err, filepath.WalkDir(match, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				add(path)
			}
			return err
		}))
	}
}

// program adds a program with its libraries as listed by ldd(1). A program that is not installed is left out; the check
// that needs it reports that.
func (a *archive) program(name string) {
	path := findProgram(a.root, name)
	if path == "" {
		return
	}
	a.same(path)
	if a.root != "" {
		return // see libraries
	}
	out, err := exec.Command("ldd", path).Output()
	if err != nil {
		a.err = errors.Join(a.err, fmt.Errorf("ldd %s: %w", path, err))
	}
	for _, word := range strings.Fields(string(out)) {
		if filepath.IsAbs(word) {
			a.same(word)
		}
	}
}

// findProgram returns the path of a program below root, or "". Administrators' programs are not on every user's PATH.
func findProgram(root, name string) string {
	for _, dir := range filepath.SplitList(programPath) {
		path := filepath.Join(dir, name)
		if _, err := os.Lstat(root + path); err == nil {
			return path
		}
	}
	return ""
}
