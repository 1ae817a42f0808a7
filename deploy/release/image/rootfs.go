package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// rootfs returns the files of the lower layer, by path, and the packages that they come from.
func rootfs(packages []*debianPackage) (chosen map[string]file, used []*debianPackage, err error) {
	c := &chooser{owner: map[string]*debianPackage{}, files: map[string]file{}, chosen: map[string]file{}}
	for _, p := range packages {
		for at, f := range p.files {
			c.owner[at], c.files[at] = p, f
		}
	}
	c.iptables()
	c.take("usr/sbin/nft")
	c.take("etc/protocols")                              // iptables looks up sctp
	c.take("etc/os-release")                             // identifies the distribution, for vulnerability scanners
	c.takeAll("usr/share/ca-certificates/mozilla/*.crt") // for a kubeconfig whose server has a public certificate
	if c.err != nil {
		return nil, nil, c.err
	}
	for at := range c.chosen {
		if p := c.owner[at]; !slices.Contains(used, p) {
			used = append(used, p)
		}
	}
	slices.SortFunc(used, func(a, b *debianPackage) int { return strings.Compare(a.path, b.path) })
	for _, p := range used {
		name := p.field("Package")
		c.take("usr/share/doc/" + name + "/copyright")
		// Images without dpkg list their packages here.
		c.chosen["var/lib/dpkg/status.d/"+name] = file{mode: 0o644, text: []byte(p.control)}
	}
	c.bundle("etc/ssl/certs/ca-certificates.crt", "usr/share/ca-certificates/")
	for _, command := range []string{"iptables", "ip6tables"} {
		for _, what := range []string{"", "-save", "-restore"} { // as update-alternatives(1) would select
			c.chosen["usr/sbin/"+command+what] = file{mode: 0o777, link: "xtables-nft-multi"}
		}
	}
	for at := range maps.Clone(c.chosen) { // the standard paths of loaders
		if folder := strings.Split(at, "/"); folder[0] == "usr" && strings.HasPrefix(folder[1], "lib") {
			c.chosen[folder[1]] = file{mode: 0o777, link: "usr/" + folder[1]}
		}
	}
	c.chosen["run"] = file{mode: 0o755, folder: true}
	c.chosen["tmp"] = file{mode: 0o1777, folder: true}
	return c.chosen, used, c.err
}

// A chooser selects files from packages, and the files that these need. It keeps its first error.
type chooser struct {
	owner  map[string]*debianPackage
	files  map[string]file
	chosen map[string]file
	err    error
}

// iptables takes the programs of both variants under all their names, and all matches and
// targets: to list a table, iptables must also understand the rules of other programs.
func (c *chooser) iptables() {
	for _, command := range []string{"iptables", "ip6tables"} {
		for _, variant := range []string{"-nft", "-legacy"} {
			for _, what := range []string{"", "-save", "-restore"} {
				c.take("usr/sbin/" + command + variant + what)
			}
		}
	}
	c.takeAll("usr/lib/*/xtables/*.so")
}

// takeAll takes the files that match a pattern of path.Match, of which there must be one.
func (c *chooser) takeAll(pattern string) {
	none := true
	for _, at := range slices.Sorted(maps.Keys(c.files)) {
		if fits, _ := path.Match(pattern, at); fits {
			c.take(at)
			none = false
		}
	}
	if none && c.err == nil {
		c.err = fmt.Errorf("no package has %s", pattern)
	}
}

// take takes a file, its target if it is a link, and the libraries and the loader that
// it needs if it is a program or a library.
func (c *chooser) take(at string) {
	if _, there := c.chosen[at]; there || c.err != nil {
		return
	}
	f, ok := c.files[at]
	if !ok {
		c.err = fmt.Errorf("no package has %s", at)
		return
	}
	c.chosen[at] = f
	switch {
	case f.link != "":
		c.take(merged(strings.TrimPrefix(resolved(at, f.link), "/")))
	case bytes.HasPrefix(f.text, []byte(elf.ELFMAG)):
		if err := c.needs(f.text); err != nil && c.err == nil {
			c.err = fmt.Errorf("%s: %w", at, err)
		}
	}
}

// resolved returns the target of a link.
func resolved(at, link string) string {
	if path.IsAbs(link) {
		return path.Clean(link)
	}
	return path.Join(path.Dir(at), link)
}

// needs takes the libraries that the dynamic linker would load: ld.so(8).
func (c *chooser) needs(text []byte) error {
	program, err := elf.NewFile(bytes.NewReader(text))
	if err != nil {
		return err
	}
	for _, part := range program.Progs {
		if part.Type == elf.PT_INTERP {
			loader := make([]byte, part.Filesz)
			if _, err := part.ReadAt(loader, 0); err != nil {
				return err
			}
			c.take(merged(strings.Trim(string(loader), "/\x00")))
		}
	}
	libraries, err := program.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, name := range libraries {
		c.takeAll("usr/lib/*-linux-gnu/" + name)
	}
	return nil
}

// bundle concatenates the certificates below a folder, in the order of their names.
func (c *chooser) bundle(at, folder string) {
	var all bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(c.chosen)) {
		if strings.HasPrefix(name, folder) {
			all.Write(bytes.TrimSpace(c.chosen[name].text))
			all.WriteByte('\n')
			delete(c.chosen, name)
		}
	}
	c.chosen[at] = file{mode: 0o644, text: all.Bytes()}
}
