package main

import (
	"archive/zip"
	"bufio"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	spdxjson "github.com/spdx/tools-golang/json"
)

func TestPackages(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "deploy/release/packages")
}

const version = "v9.8.7"

// sources are a clone of the working tree, including uncommitted changes, and its copy. made holds the output of
// "make release" in the first. The second, for comparison, makes only the files for this platform.
var (
	sources [2]string
	made    string
	commit  string
)

var _ = BeforeSuite(func() {
	sources = [2]string{clone(filepath.Join(GinkgoT().TempDir(), "x")), filepath.Join(GinkgoT().TempDir(), "xx")}
	run("", "cp", "-a", sources[0], sources[1]) // not another clone: the working tree may change
	for i, platforms := range []string{"linux/amd64 linux/arm64", "linux/" + runtime.GOARCH} {
		run(sources[i], "make", "--silent", "release", "VERSION="+version, "PLATFORMS="+platforms)
	}
	made = filepath.Join(sources[0], "dist")
	commit = strings.TrimSpace(run(sources[0], "git", "rev-parse", "HEAD"))
})

// clone creates a repository in dir with the current files in one commit, which is always the same. It also sets the
// version in the changelog, the chart and the kustomization.
func clone(dir string) string {
	GinkgoHelper()
	Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	run("../../..", "sh", "-c", `git ls-files -z --cached --others --exclude-standard |
		tar --null --files-from=- --ignore-failed-read -c 2>/dev/null | tar -x -C "$0"`, dir)
	file := filepath.Join(dir, "CHANGELOG.md")
	text, err := os.ReadFile(file)
	Expect(err).NotTo(HaveOccurred())
	Expect(os.WriteFile(file, append(text, "\n## [9.8.7] - 2026-01-02\n\n### Added\n\n- What is new.\n\n## 9.8.6\n\n- Old.\n"...), 0o644)).To(Succeed())
	run(dir, "sed", "-i", "-E", "s/^(version: ).*/\\19.8.7/; s/^(appVersion: | *newTag: ).*/\\1v9.8.7/", "deploy/helm/usher/Chart.yaml", "deploy/kustomize/kustomization.yaml")
	run(dir, "git", "init", "-q")
	run(dir, "git", "add", "-A")
	run(dir, "git", "-c", "commit.gpgsign=false", "commit", "-q", "-m", "all")
	return dir
}

// run runs a command that must succeed, and returns its output.
func run(dir, name string, args ...string) string {
	GinkgoHelper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	for _, who := range []string{"AUTHOR", "COMMITTER"} { // git requires them; fixed values keep the commit the same
		cmd.Env = append(cmd.Env, "GIT_"+who+"_NAME=a", "GIT_"+who+"_EMAIL=a", "GIT_"+who+"_DATE=2026-01-02T03:04:05Z")
	}
	cmd.Env = append(os.Environ(), cmd.Env...)
	out, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s %s: %s", name, args, out)
	return string(out)
}

// unpacked unpacks the archive for a Linux architecture, and returns its folder.
func unpacked(arch string) string {
	GinkgoHelper()
	name, dir := "usher_"+version+"_linux_"+arch, GinkgoT().TempDir()
	run(dir, "tar", "-xzf", filepath.Join(made, name+".tar.gz"))
	return filepath.Join(dir, name)
}

// another builds another program, and returns the folder for -binaries.
func another(source, flag string) string {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	run(source, "go", "build", flag, "-o", filepath.Join(dir, runtime.GOOS+"-"+runtime.GOARCH, "usher"), "./test/all")
	return dir
}

// without returns a function that removes a line from a file of the release's sources. The file is restored
// afterwards.
func without(name, line string) func(*release) {
	return func(r *release) {
		GinkgoHelper()
		file, text := filepath.Join(r.source, name), read(r.source, name)
		DeferCleanup(os.WriteFile, file, []byte(text), fs.FileMode(0o644))
		Expect(text).To(ContainSubstring(line + "\n"))
		Expect(os.WriteFile(file, []byte(strings.Replace(text, line+"\n", "\n", 1)), 0o644)).To(Succeed())
	}
}

func read(elements ...string) string {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(elements...))
	Expect(err).NotTo(HaveOccurred())
	return string(text)
}

// filesIn lists the files below a folder.
func filesIn(dir string) (names []string) {
	GinkgoHelper()
	Expect(filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})).To(Succeed())
	return names
}

var _ = Describe("a release", func() {
	It("has a file of each kind for each platform, the notes, and their checksums", func() {
		Expect(filesIn(made)).To(ConsistOf("checksums.txt", "notes.md",
			"usher_v9.8.7_linux_amd64.tar.gz", "usher_v9.8.7_linux_amd64.spdx.json", "kubectl-usher_v9.8.7_linux_amd64.spdx.json", "usher_9.8.7-1_amd64.deb", "usher-9.8.7-1.x86_64.rpm",
			"usher_v9.8.7_linux_arm64.tar.gz", "usher_v9.8.7_linux_arm64.spdx.json", "kubectl-usher_v9.8.7_linux_arm64.spdx.json", "usher_9.8.7-1_arm64.deb", "usher-9.8.7-1.aarch64.rpm"))
		Expect(read(made, "notes.md")).To(Equal("### Added\n\n- What is new.\n"))
		Expect(strings.Count(run(made, "sha256sum", "--strict", "-c", "checksums.txt"), ": OK\n")).To(Equal(10))
	})

	It("has krew's manifest if it has all platforms, and all files except notes are published", func() {
		r := release{version: version, source: sources[0], out: GinkgoT().TempDir()}
		for _, platform := range []string{"linux_amd64.tar.gz", "linux_arm64.tar.gz", "darwin_amd64.tar.gz", "darwin_arm64.tar.gz", "windows_amd64.zip"} {
			Expect(os.WriteFile(filepath.Join(r.out, "usher_"+version+"_"+platform), nil, 0o644)).To(Succeed())
		}
		Expect(r.krew()).To(BeEmpty())
		Expect(os.WriteFile(filepath.Join(r.out, "usher_"+version+"_windows_arm64.zip"), nil, 0o644)).To(Succeed())
		names, err := r.krew()
		Expect(err).NotTo(HaveOccurred())
		Expect(names).To(HaveExactElements("krew.yaml"))
		Expect(filesIn(r.out)).To(ContainElement("krew.yaml"))

		patterns := regexp.MustCompile(`\bdist/(\S+)`).FindAllStringSubmatch(read("../../../.github/workflows/release.yml"), -1)
		var left []string
		for _, name := range append(filesIn(made), filesIn(r.out)...) {
			if !slices.ContainsFunc(patterns, func(p []string) bool { matches, _ := path.Match(p[1], name); return matches && name != "notes.md" }) {
				left = append(left, name)
			}
		}
		Expect(left).To(HaveExactElements("notes.md"))
	})

	It("is the same, bit by bit, when it is built in another directory", func() {
		Expect(run(sources[1], "git", "rev-parse", "HEAD")).To(Equal(commit + "\n"))
		sums := strings.Split(strings.TrimSpace(read(sources[1], "dist", "checksums.txt")), "\n")
		Expect(sums).To(HaveLen(5))
		Expect(strings.Split(read(made, "checksums.txt"), "\n")).To(ContainElements(sums))
	})

	It("has programs that report version and commit, built for their platforms", func() {
		for _, program := range []string{"usher", "kubectl-usher"} {
			Expect(strings.Fields(run(".", filepath.Join(unpacked(runtime.GOARCH), program), "version"))[:3]).To(HaveExactElements("usher", version, commit[:12]))
		}
		for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
			deb := GinkgoT().TempDir()
			run(".", "dpkg-deb", "-x", filepath.Join(made, "usher_9.8.7-1_"+arch+".deb"), deb)
			for _, program := range []string{filepath.Join(unpacked(arch), "usher"), filepath.Join(unpacked(arch), "kubectl-usher"), filepath.Join(deb, "usr/bin/usher"), filepath.Join(deb, "usr/bin/kubectl-usher")} {
				f, err := elf.Open(program)
				Expect(err).NotTo(HaveOccurred())
				defer f.Close()
				Expect(f.Machine).To(Equal(machine), program)
				Expect(f.ImportedLibraries()).To(BeEmpty())
				info, err := buildinfo.ReadFile(program)
				Expect(err).NotTo(HaveOccurred())
				Expect(info.Settings).To(ContainElement(HaveField("Value", commit)))
			}
		}
	})

	It("has archives with programs, documents, units, manual pages and completions", func() {
		dir := unpacked("amd64")
		Expect(filesIn(dir)).To(ContainElements("usher", "kubectl-usher", "LICENSE", "README.md", "CHANGELOG.md", "THIRD_PARTY_LICENSES",
			"systemd/usher.service", "systemd/usher.env", "man/usher.1", "man/usher-run.1", "man/usher-get-services.1", "man/kubectl-usher.1", "man/kubectl-usher-exec.1",
			"completions/usher.bash", "completions/_usher", "completions/usher.fish", "completions/usher.ps1", "completions/kubectl-usher.bash", "completions/_kubectl-usher"))
		stat, err := os.Stat(filepath.Join(dir, "usher"))
		Expect(err).NotTo(HaveOccurred())
		Expect(stat.Mode().String()).To(Equal("-rwxr-xr-x"))
		Expect(stat.ModTime()).To(BeTemporally("==", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)))
	})

	It("has archives that krew can unpack: with regular files only", func() {
		for _, arch := range []string{"amd64", "arm64"} {
			lines := strings.Split(strings.TrimSpace(run(made, "tar", "-tvzf", "usher_"+version+"_linux_"+arch+".tar.gz")), "\n")
			Expect(len(lines)).To(BeNumerically(">", 10))
			Expect(lines).To(HaveEach(HavePrefix("-")))
		}
	})

	It("lists each linked module in its bill of materials and its licenses", func() {
		for _, of := range [][2]string{{"usher", "amd64"}, {"usher", "arm64"}, {"kubectl-usher", "amd64"}, {"kubectl-usher", "arm64"}} {
			program, arch := of[0], of[1]
			dir := unpacked(arch)
			f, err := os.Open(filepath.Join(made, program+"_"+version+"_linux_"+arch+".spdx.json"))
			Expect(err).NotTo(HaveOccurred())
			defer f.Close()
			doc, err := spdxjson.Read(f)
			Expect(err).NotTo(HaveOccurred())
			listed := map[string]bool{}
			for _, p := range doc.Packages {
				listed[p.PackageName+" "+p.PackageVersion] = true
			}
			Expect(doc.Packages[0].PackageChecksums).To(ContainElement(HaveField("Value", fmt.Sprintf("%x", sha256.Sum256([]byte(read(dir, program)))))))
			licences, modules := read(dir, "THIRD_PARTY_LICENSES"), 0
			lines := bufio.NewScanner(strings.NewReader(run(".", "go", "version", "-m", filepath.Join(dir, program))))
			for lines.Scan() {
				words := strings.Fields(lines.Text())
				if words[0] != "dep" && words[0] != "=>" {
					continue
				}
				modules++
				Expect(listed).To(HaveKey(words[1] + " " + words[2]))
				Expect(licences).To(ContainSubstring("\n" + words[1] + " " + words[2] + "\n"))
			}
			Expect(modules).To(BeNumerically(">", 50))
			Expect(listed).To(HaveLen(modules + 2)) // usher and Go's library
		}
	})

	DescribeTable("is not created", func(change func(*release), why string) {
		r := release{version: version, source: sources[0], binaries: filepath.Join(sources[0], "bin/release"), out: GinkgoT().TempDir()}
		change(&r)
		Expect(r.make()).To(MatchError(ContainSubstring(why)))
		Expect(filesIn(r.out)).To(BeEmpty())
	},
		Entry("for a version without v", func(r *release) { r.version = "9.8.7" }, `"9.8.7" is not like v1.2.3`),
		Entry("for an incomplete version", func(r *release) { r.version = "v9.8" }, `"v9.8" is not like v1.2.3`),
		Entry("for a version that differs from that of the programs", func(r *release) { r.version = "v9.8.7-rc.1" }, `it is v9.8.7-rc.1, but usher version says "usher v9.8.7`),
		Entry("for a version that is missing from the changelog", func(r *release) { r.version = "v9.8.8" }, "CHANGELOG.md: there is no section '## 9.8.8 - "),
		Entry("for a version that is missing from the chart", without("deploy/helm/usher/Chart.yaml", "version: 9.8.7"), "Chart.yaml: there is no line 'version: 9.8.7'"),
		Entry("for a version whose image is missing from the chart", without("deploy/helm/usher/Chart.yaml", "appVersion: v9.8.7"), "Chart.yaml: there is no line 'appVersion: v9.8.7'"),
		Entry("for a version whose image is missing from the kustomization", without("deploy/kustomize/kustomization.yaml", "newTag: v9.8.7"), "kustomization.yaml: there is no line 'newTag: v9.8.7'"),
		Entry("without programs", func(r *release) { r.binaries = r.source }, "there is no program "),
		Entry("with a program in the directory of another platform", func(r *release) {
			other := GinkgoT().TempDir()
			Expect(os.Symlink(filepath.Join(r.binaries, "linux-arm64"), filepath.Join(other, "linux-amd64"))).To(Succeed())
			r.binaries = other
		}, "it is for linux/arm64"),
		Entry("with a program that does not report its commit", func(r *release) {
			r.binaries = another(r.source, "-buildvcs=false")
		}, "it does not say of which commit it is"),
		Entry("with a program built from uncommitted changes", func(r *release) {
			Expect(os.WriteFile(filepath.Join(r.source, "new"), nil, 0o644)).To(Succeed())
			DeferCleanup(os.Remove, filepath.Join(r.source, "new"))
			r.binaries = another(r.source, "-buildvcs=true")
		}, "it was built with changes that are not committed"),
	)

	// staged returns a release with these files staged for a platform.
	staged := func(version string, names ...string) release {
		r := release{version: version, source: sources[0], out: GinkgoT().TempDir(), staged: GinkgoT().TempDir(), time: time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC)}
		for _, name := range append(names, "licences", "program", "kubectl-usher", manual+"/usher.1") {
			_, err := r.stage(name, []byte(name))
			Expect(err).NotTo(HaveOccurred())
		}
		return r
	}

	It("has pre-release packages that sort before the release, with names that GitHub keeps", func() {
		r := staged(version+"-rc.1", completions+"/usher.bash", completions+"/_usher", completions+"/usher.fish",
			completions+"/kubectl-usher.bash", completions+"/_kubectl-usher", completions+"/kubectl-usher.fish")
		names, err := r.packages(program{file: filepath.Join(r.staged, "program"), os: "linux", arch: "amd64"}, filepath.Join(r.staged, "licences"))
		Expect(err).NotTo(HaveOccurred())
		Expect(names).To(HaveExactElements("usher_9.8.7.rc.1-1_amd64.deb", "usher-9.8.7.rc.1-1.x86_64.rpm"))
		Expect(filesIn(r.out)).To(ConsistOf(names))
		Expect(run(r.out, "dpkg-deb", "--field", names[0], "Version")).To(Equal("9.8.7~rc.1-1\n"))
	})

	It("has a .zip for Windows, without links", func() {
		r := staged(version, completions+"/usher.ps1")
		name, err := r.archive(program{file: filepath.Join(r.staged, "program"), os: "windows", arch: "arm64"}, filepath.Join(r.staged, "licences"))
		Expect(err).NotTo(HaveOccurred())
		Expect(name).To(Equal("usher_v9.8.7_windows_arm64.zip"))
		z, err := zip.OpenReader(filepath.Join(r.out, name))
		Expect(err).NotTo(HaveOccurred())
		defer z.Close()
		var names []string
		for _, f := range z.File {
			Expect(f.Modified).To(BeTemporally("==", r.time))
			Expect(f.Mode().IsRegular()).To(BeTrue())
			names = append(names, strings.TrimPrefix(f.Name, "usher_v9.8.7_windows_arm64/"))
		}
		Expect(names).To(HaveExactElements("usher.exe", "kubectl-usher.exe", "LICENSE", "THIRD_PARTY_LICENSES", "README.md", "CHANGELOG.md", "completions/usher.ps1", "man/usher.1"))
		content, err := fs.ReadFile(z, path.Join("usher_v9.8.7_windows_arm64", "usher.exe"))
		Expect(err).NotTo(HaveOccurred())
		Expect(string(content)).To(Equal("program"))
	})
})
