package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/usherproxy/usher/deploy/release/krew"
)

// Folders for the output of document, below the staged folder.
const (
	manual      = "man"
	completions = "completions"
)

// document writes the manual pages and the completions.
func (r *release) document() error {
	for _, folder := range []string{manual, completions} {
		if err := os.Mkdir(filepath.Join(r.staged, folder), 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"usher", "kubectl-usher"} {
		if err := r.documentOf(name); err != nil {
			return err
		}
	}
	return nil
}

// documentOf writes the documents of one program.
func (r *release) documentOf(name string) error {
	said, err := r.here(name, "version")
	if err != nil {
		return err
	}
	if words := strings.Fields(string(said)); len(words) < 2 || words[1] != r.version {
		return fmt.Errorf("-version: it is %s, but %s version says %q", r.version, name, strings.TrimSpace(string(said)))
	}
	if _, err := r.here(name, "manual", filepath.Join(r.staged, manual)); err != nil {
		return err
	}
	for shell, file := range map[string]string{"bash": name + ".bash", "zsh": "_" + name, "fish": name + ".fish", "powershell": name + ".ps1"} {
		text, err := r.here(name, "completion", shell)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(r.staged, completions, file), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// stage writes a file into the staged folder, and returns its path.
func (r *release) stage(name string, text []byte) (string, error) {
	path := filepath.Join(r.staged, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	return path, os.WriteFile(path, text, 0o644)
}

// compressed returns text as gzip -9n does.
func compressed(text []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// notes returns the section of CHANGELOG.md for the version. A prerelease may use the section
// Unreleased instead.
func (r *release) notes() (string, error) {
	text, err := os.ReadFile(filepath.Join(r.source, "CHANGELOG.md"))
	if err != nil {
		return "", err
	}
	number := strings.TrimPrefix(r.version, "v")
	titles := []string{number}
	if semver.Prerelease(r.version) != "" {
		titles = append(titles, "Unreleased")
	}
	for _, title := range titles {
		if s, ok := section(string(text), title); ok {
			return s, nil
		}
	}
	return "", fmt.Errorf("CHANGELOG.md: there is no section '## %s - YYYY-MM-DD', or it is empty; the section Unreleased becomes that", number)
}

// deployed checks that the manifests for clusters use the image of the version. A prerelease may use
// another one.
func (r *release) deployed() error {
	if semver.Prerelease(r.version) != "" {
		return nil
	}
	for _, want := range [][2]string{
		{"deploy/helm/usher/Chart.yaml", "version: " + strings.TrimPrefix(r.version, "v")},
		{"deploy/helm/usher/Chart.yaml", "appVersion: " + r.version},
		{"deploy/kustomize/kustomization.yaml", "newTag: " + r.version},
	} {
		text, err := os.ReadFile(filepath.Join(r.source, filepath.FromSlash(want[0])))
		if err != nil {
			return err
		}
		if !regexp.MustCompile(`(?m)^ *` + regexp.QuoteMeta(want[1]) + `$`).Match(text) {
			return fmt.Errorf("%s: there is no line '%s'", want[0], want[1])
		}
	}
	return nil
}

var heading = regexp.MustCompile(`(?m)^## \[?([^\]\s]+).*\n`)

// section returns the text below a second-level heading that begins with word, in
// brackets or not.
func section(text, word string) (string, bool) {
	all := heading.FindAllStringSubmatchIndex(text, -1)
	for i, at := range all {
		if text[at[2]:at[3]] != word {
			continue
		}
		end := len(text)
		if i+1 < len(all) {
			end = all[i+1][0]
		}
		body := strings.TrimSpace(text[at[1]:end])
		return body + "\n", body != ""
	}
	return "", false
}

// licenceFile matches the files of a module that must accompany programs built from it.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|copyright)([.-].*)?$`)

// licences writes the licenses of Go's standard library, and of all modules that are linked into the programs of a
// platform, into a file, and returns its path. It writes a text that several of them share once.
func (r *release) licences(p program) (string, error) {
	folders, err := r.folders()
	if err != nil {
		return "", err
	}
	var texts []string // in the order of discovery
	of := map[string][]string{}
	collect := func(name, folder string) error {
		entries, err := os.ReadDir(folder)
		if err != nil {
			return err
		}
		found := false
		for _, e := range entries {
			if e.IsDir() || !licenceFile.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
				continue
			}
			text, err := os.ReadFile(filepath.Join(folder, e.Name()))
			if err != nil {
				return err
			}
			t := strings.TrimSpace(string(text))
			if of[t] == nil {
				texts = append(texts, t)
			}
			of[t], found = append(of[t], name), true
		}
		if !found {
			return fmt.Errorf("%s: no licence is found in %s", name, folder)
		}
		return nil
	}
	if err := collect("Go's library", folders["std"]); err != nil {
		return "", err
	}
	for _, m := range p.modules {
		if m.Replace != nil {
			m = m.Replace
		}
		if err := collect(m.Path+" "+m.Version, folders[m.Path+" "+m.Version]); err != nil {
			return "", err
		}
	}
	var b strings.Builder
	b.WriteString("usher is linked with the following, under these terms.\n")
	for _, t := range texts {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(of[t], "\n"), t)
	}
	return r.stage(filepath.Join(p.os+"-"+p.arch, "THIRD_PARTY_LICENSES"), []byte(b.String()))
}

// folders returns the folders with the sources of modules, by path and version; std is Go's.
func (r *release) folders() (map[string]string, error) {
	if r.sources != nil {
		return r.sources, nil
	}
	cmd := exec.Command("go", "list", "-m", "-f", "{{with .Replace}}{{.Path}} {{.Version}}\t{{.Dir}}{{else}}{{.Path}} {{.Version}}\t{{.Dir}}{{end}}", "all")
	cmd.Dir, cmd.Stderr = r.source, os.Stderr
	list, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list -m all: %w", err)
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w", err)
	}
	r.sources = map[string]string{"std": strings.TrimSpace(string(root))}
	for line := range strings.Lines(string(list)) {
		module, folder, _ := strings.Cut(strings.TrimSpace(line), "\t")
		r.sources[module] = folder
	}
	return r.sources, nil
}

// checksums writes the SHA-256 of files as sha256sum(1) does.
func (r *release) checksums(names []string) error {
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(r.out, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(content), name)
	}
	return os.WriteFile(filepath.Join(r.out, "checksums.txt"), []byte(b.String()), 0o644)
}

// krew writes the manifest that installs kubectl's plugin, and returns its name. A release for some platforms
// only has none.
func (r *release) krew() (names []string, err error) {
	template, err := os.ReadFile(filepath.Join(r.source, "deploy", "krew", "usher.yaml"))
	if err != nil {
		return nil, err
	}
	text, err := krew.Manifest(template, r.version, r.out)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return []string{"krew.yaml"}, os.WriteFile(filepath.Join(r.out, "krew.yaml"), text, 0o644)
}
