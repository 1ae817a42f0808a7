package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format, as the next
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

const maintainer = "usher's maintainers <usherproxy@users.noreply.github.com>"

// copyrightFile is /usr/share/doc/usher/copyright (Debian Policy 12.5).
const copyrightFile = `Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: usher
Source: https://github.com/usherproxy/usher

Files: *
Copyright: usher's authors
License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.
Comment:
 What usher is linked with, and under which terms, is in
 /usr/share/doc/usher/THIRD_PARTY_LICENSES.gz.
`

// overrides are for lintian(1): the programs are static, and kubectl's second name for its plugin has no manual page.
const overrides = "usher: statically-linked-binary [usr/bin/usher]\nusher: statically-linked-binary [usr/bin/kubectl-usher]\n" +
	"usher: no-manual-page [usr/bin/kubectl_complete-usher]\n"

// packages writes the .deb and the .rpm of the programs of a platform, and returns their names.
func (r *release) packages(p program, licences string) (names []string, err error) {
	for _, format := range []string{"deb", "rpm"} {
		info, err := r.description(p, format, licences)
		if err != nil {
			return nil, err
		}
		packager, err := nfpm.Get(format)
		if err != nil {
			return nil, err
		}
		if err := nfpm.PrepareForPackager(info, format); err != nil {
			return nil, fmt.Errorf(".%s: %w", format, err)
		}
		// GitHub renames a file with a ~, which prereleases have in their version, and the checksums would not match.
		name := strings.ReplaceAll(packager.ConventionalFileName(info), "~", ".")
		out, err := os.Create(filepath.Join(r.out, name))
		if err != nil {
			return nil, err
		}
		defer out.Close()
		if err := packager.Package(info, out); err != nil {
			return nil, fmt.Errorf(".%s: %w", format, err)
		}
		if err := out.Close(); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// description returns the metadata of a package, its contents and its scripts.
func (r *release) description(p program, format, licences string) (*nfpm.Info, error) {
	contents, err := r.contents(p, format, licences)
	if err != nil {
		return nil, err
	}
	script := func(name string) string { return filepath.Join(r.source, "deploy", "packages", name) }
	return nfpm.WithDefaults(&nfpm.Info{
		Name:       "usher",
		Arch:       p.arch,
		Platform:   "linux",
		Version:    r.version,
		Release:    "1",
		Section:    "net",
		Priority:   "optional",
		Maintainer: maintainer,
		Homepage:   "https://github.com/usherproxy/usher",
		License:    "Apache-2.0",
		Description: `service proxy for Kubernetes in userspace
usher forwards connections to the cluster IPs of Kubernetes Services to their
endpoints. It accepts each connection, tries endpoints until one answers, and
copies the data. On a node it replaces kube-proxy. On a laptop, kubectl-usher
inspects the usher processes of a cluster, and makes its Services reachable.`,
		DisableGlobbing: true,
		MTime:           r.time,
		Overridables: nfpm.Overridables{
			Suggests: []string{"iptables"},
			Contents: contents,
			Umask:    0o022,
			Scripts: nfpm.Scripts{
				PostInstall: script("postinst.sh"),
				PreRemove:   script("prerm.sh"),
				PostRemove:  script("postrm.sh"),
			},
			Deb: nfpm.Deb{Compression: compression},
			RPM: nfpm.RPM{
				BuildHost:   "localhost",
				Group:       "System Environment/Daemons",
				Summary:     "Service proxy for Kubernetes in userspace",
				Packager:    maintainer,
				Compression: compression,
			},
		},
	}), nil
}

// compression of packages is at gzip's default level: at level 9 they are up to 3% smaller, and take four times as long.
const compression = "gzip:6"

// contents returns the files of a package.
func (r *release) contents(p program, format, licences string) (list files.Contents, err error) {
	add := func(kind, from, to string, mode fs.FileMode) {
		list = append(list, &files.Content{Type: kind, Source: from, Destination: to,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: r.time}})
	}
	// write adds a generated file.
	write := func(to string, text []byte) {
		path, wrong := r.stage(filepath.Join(p.os+"-"+p.arch, format, to), text)
		if wrong != nil && err == nil {
			err = wrong
		}
		add(files.TypeFile, path, to, 0o644)
	}
	// compress adds a file compressed as Debian Policy 12 requires for documents.
	compress := func(from, to string) {
		text, wrong := os.ReadFile(from)
		if wrong == nil {
			text, wrong = compressed(text)
		}
		if wrong != nil && err == nil {
			err = wrong
		}
		write(to+".gz", text)
	}
	source := func(name string) string { return filepath.Join(r.source, filepath.FromSlash(name)) }

	add(files.TypeFile, p.file, "/usr/bin/usher", 0o755)
	add(files.TypeFile, p.kubectl(), "/usr/bin/kubectl-usher", 0o755)
	add(files.TypeSymlink, "kubectl-usher", "/usr/bin/kubectl_complete-usher", 0o777)

	unit, err := os.ReadFile(source("deploy/systemd/usher.service"))
	if err != nil {
		return nil, err
	}
	const other, here = "ExecStart=/usr/local/bin/usher ", "ExecStart=/usr/bin/usher "
	if !strings.Contains(string(unit), other) {
		return nil, fmt.Errorf("deploy/systemd/usher.service: there is no line that begins with %q", other)
	}
	units := "/usr/lib/systemd/system/"
	if format == "deb" {
		units = "/lib/systemd/system/" // the same folder, by the name that lintian accepts
	}
	write(units+"usher.service", []byte(strings.Replace(string(unit), other, here, 1)))
	add(files.TypeDir, "", "/etc/usher", 0o755)
	add(files.TypeDir, "", "/etc/usher/manifests", 0o755)
	add(files.TypeConfigNoReplace, source("deploy/systemd/usher.env"), "/etc/usher/usher.env", 0o644)

	pages, err := os.ReadDir(filepath.Join(r.staged, manual))
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		compress(filepath.Join(r.staged, manual, page.Name()), "/usr/share/man/man1/"+page.Name())
	}
	zsh := "/usr/share/zsh/site-functions/"
	if format == "deb" {
		zsh = "/usr/share/zsh/vendor-completions/"
	}
	for _, name := range []string{"usher", "kubectl-usher"} {
		for file, to := range map[string]string{
			name + ".bash": "/usr/share/bash-completion/completions/" + name,
			"_" + name:     zsh + "_" + name,
			name + ".fish": "/usr/share/fish/vendor_completions.d/" + name + ".fish",
		} {
			add(files.TypeFile, filepath.Join(r.staged, completions, file), to, 0o644)
		}
	}

	const doc = "/usr/share/doc/usher/"
	compress(licences, doc+"THIRD_PARTY_LICENSES")
	compress(source("CHANGELOG.md"), doc+"changelog")
	add(files.TypeFile, source("README.md"), doc+"README.md", 0o644)
	if format == "rpm" { // unlike dpkg, rpm removes only listed folders
		add(files.TypeDir, "", strings.TrimSuffix(doc, "/"), 0o755)
		add(files.TypeDir, "", "/usr/share/licenses/usher", 0o755)
		add(files.TypeRPMLicense, source("LICENSE"), "/usr/share/licenses/usher/LICENSE", 0o644)
		return list, err
	}
	write(doc+"copyright", []byte(copyrightFile))
	write("/usr/share/lintian/overrides/usher", []byte(overrides))
	entry, wrong := compressed([]byte(r.debianChangelog()))
	if wrong != nil {
		return nil, wrong
	}
	write(doc+"changelog.Debian.gz", entry)
	return list, err
}

// debianChangelog returns the changelog of the package itself: deb-changelog(5).
func (r *release) debianChangelog() string {
	// A version's - becomes ~, so that a prerelease sorts before its release.
	version := strings.ReplaceAll(strings.TrimPrefix(r.version, "v"), "-", "~")
	return fmt.Sprintf("usher (%s-1) stable; urgency=medium\n\n  * Release %s: see changelog.gz.\n\n -- %s  %s\n",
		version, r.version, maintainer, r.time.UTC().Format(time.RFC1123Z))
}
