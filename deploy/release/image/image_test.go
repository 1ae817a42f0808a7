package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestImage(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "deploy/release/image")
}

// run runs a command that must succeed, and returns its output.
func run(name string, args ...string) string {
	GinkgoHelper()
	out, err := exec.Command(name, args...).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s %s: %s", name, args, out)
	return string(out)
}

// needs skips the spec unless it runs as root and these programs are installed.
func needs(programs ...string) {
	GinkgoHelper()
	if os.Geteuid() != 0 {
		Skip("chroot needs root")
	}
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			Skip(program + " is not installed")
		}
	}
}

const version = "v9.8.7"

var _ = Describe("make image", Ordered, func() {
	var (
		archive string
		index   v1.ImageIndex
		images  = map[string]v1.Image{}
		roots   = map[string]string{} // the images' files
	)
	// The tests use a clone: a program records whether files differ from their commit, and tests may write files
	// meanwhile.
	clone := ""
	make := func(archive string) (digest string) {
		GinkgoHelper()
		out := run("make", "--silent", "-C", clone, "image", "VERSION="+version, "IMAGE="+archive)
		_, digest, _ = strings.Cut(strings.TrimSpace(out), "ghcr.io/usherproxy/usher:"+version+"@")
		Expect(digest).To(MatchRegexp("^sha256:[0-9a-f]{64}$"), out)
		return digest
	}
	BeforeAll(func() {
		dir := GinkgoT().TempDir()
		clone = filepath.Join(dir, "clone")
		run("git", "clone", "--quiet", "../../..", clone)
		packages, err := filepath.Abs("../../../.cache/debian")
		Expect(err).NotTo(HaveOccurred())
		Expect(os.MkdirAll(packages, 0o755)).To(Succeed())
		Expect(os.Mkdir(filepath.Join(clone, ".cache"), 0o755)).To(Succeed())
		Expect(os.Symlink(packages, filepath.Join(clone, ".cache/debian"))).To(Succeed())
		archive = filepath.Join(dir, "image.tar")
		digest := make(archive)
		unpacked := filepath.Join(dir, "layout")
		Expect(os.Mkdir(unpacked, 0o755)).To(Succeed())
		run("tar", "-x", "-C", unpacked, "-f", archive)
		whole, err := layout.ImageIndexFromPath(unpacked)
		Expect(err).NotTo(HaveOccurred())
		top, err := whole.IndexManifest()
		Expect(err).NotTo(HaveOccurred())
		Expect(top.Manifests).To(HaveLen(1))
		Expect(top.Manifests[0].Digest.String()).To(Equal(digest))
		Expect(top.Manifests[0].Annotations).To(HaveKeyWithValue("io.containerd.image.name", "ghcr.io/usherproxy/usher:"+version))
		index, err = whole.ImageIndex(top.Manifests[0].Digest)
		Expect(err).NotTo(HaveOccurred())
		manifest, err := index.IndexManifest()
		Expect(err).NotTo(HaveOccurred())
		for _, m := range manifest.Manifests {
			Expect(m.Platform.OS).To(Equal("linux"))
			image, err := index.Image(m.Digest)
			Expect(err).NotTo(HaveOccurred())
			images[m.Platform.Architecture] = image
			root := filepath.Join(dir, m.Platform.Architecture)
			Expect(os.Mkdir(root, 0o755)).To(Succeed())
			extract(image, root)
			roots[m.Platform.Architecture] = root
		}
		Expect(images).To(And(HaveLen(2), HaveKey("amd64"), HaveKey("arm64")))
	})

	It("creates the same bytes again", func() {
		again := filepath.Join(GinkgoT().TempDir(), "again.tar")
		make(again)
		run("cmp", archive, again)
	})

	It("records version, commit and licenses in the index, the manifests and the labels", func() {
		commit := strings.TrimSpace(run("git", "-C", clone, "rev-parse", "HEAD"))
		created := strings.TrimSpace(run("git", "-C", clone, "log", "-1", "--format=%ct"))
		check := func(inspected map[string]string) {
			GinkgoHelper()
			Expect(inspected).To(And(
				HaveKeyWithValue("org.opencontainers.image.version", version),
				HaveKeyWithValue("org.opencontainers.image.revision", commit),
				HaveKeyWithValue("org.opencontainers.image.licenses", HavePrefix("Apache-2.0 AND ")),
				HaveKeyWithValue("org.opencontainers.image.source", HavePrefix("https://")),
			))
			at, err := time.Parse(time.RFC3339, inspected["org.opencontainers.image.created"])
			Expect(err).NotTo(HaveOccurred())
			Expect(fmt.Sprint(at.Unix())).To(Equal(created))
		}
		manifest, err := index.IndexManifest()
		Expect(err).NotTo(HaveOccurred())
		check(manifest.Annotations)
		for arch, image := range images {
			manifest, err := image.Manifest()
			Expect(err).NotTo(HaveOccurred())
			check(manifest.Annotations)
			config, err := image.ConfigFile()
			Expect(err).NotTo(HaveOccurred())
			check(config.Config.Labels)
			Expect(config.Architecture).To(Equal(arch))
			Expect(config.Config.Entrypoint).To(Equal([]string{"usher"}))
			Expect(config.Config.User).To(MatchRegexp(`^[1-9]\d*:[1-9]\d*$`), "runAsNonRoot needs a number")
			Expect(config.History).To(HaveLen(2))
		}
	})

	It("creates an archive that skopeo can read", func() {
		needs("skopeo")
		copied := GinkgoT().TempDir()
		run("skopeo", "--insecure-policy", "copy", "--all", "oci-archive:"+archive, "dir:"+copied)
		var inspected struct{ Architecture string }
		Expect(json.Unmarshal([]byte(run("skopeo", "--override-arch=arm64", "inspect", "oci-archive:"+archive)), &inspected)).To(Succeed())
		Expect(inspected.Architecture).To(Equal("arm64"))
	})

	It("creates small layers", func() {
		for arch, image := range images {
			layers, err := image.Layers()
			Expect(err).NotTo(HaveOccurred())
			Expect(layers).To(HaveLen(2))
			base, err := layers[0].Size()
			Expect(err).NotTo(HaveOccurred())
			Expect(base).To(BeNumerically("<", 3<<20), "iptables and nft, %s", arch)
			upper, err := layers[1].Size()
			Expect(err).NotTo(HaveOccurred())
			Expect(upper).To(BeNumerically("<", 16<<20), "usher, %s", arch)
		}
	})

	It("lists the contents of each image in SPDX and as Debian packages", func() {
		for arch, root := range roots {
			bill, err := os.ReadFile(filepath.Join(root, "usr/share/doc/usher/usher.spdx.json"))
			Expect(err).NotTo(HaveOccurred())
			Expect(os.ReadFile(archive + "." + arch + ".spdx.json")).To(Equal(bill))
			var doc struct {
				SPDXVersion string
				Packages    []struct{ Name, VersionInfo string }
			}
			Expect(json.Unmarshal(bill, &doc)).To(Succeed())
			Expect(doc.SPDXVersion).To(Equal("SPDX-2.3"))
			listed := map[string]string{}
			for _, p := range doc.Packages {
				listed[p.Name] = p.VersionInfo
			}
			Expect(listed).To(And(HaveKeyWithValue("ghcr.io/usherproxy/usher", version), HaveKeyWithValue("github.com/usherproxy/usher", version), HaveKey("k8s.io/client-go"), HaveKey("stdlib")))
			stanzas, err := filepath.Glob(filepath.Join(root, "var/lib/dpkg/status.d/*"))
			Expect(err).NotTo(HaveOccurred())
			Expect(stanzas).NotTo(BeEmpty())
			for _, file := range stanzas {
				text, err := os.ReadFile(file)
				Expect(err).NotTo(HaveOccurred())
				p := &debianPackage{control: string(text)}
				Expect(p.field("Architecture")).To(BeElementOf(arch, "all"))
				Expect(listed).To(HaveKeyWithValue(p.field("Package"), p.field("Version")))
				Expect(filepath.Join(root, "usr/share/doc", filepath.Base(file), "copyright")).To(BeARegularFile())
			}
			Expect(listed).To(And(HaveKey("iptables"), HaveKey("libc6"), Not(HaveKey("openssl"))))
			Expect(os.ReadFile(filepath.Join(root, "etc/os-release"))).To(ContainSubstring("ID=debian"))
		}
	})

	It("includes usher, iptables, nft, and no other program", func() {
		for _, root := range roots {
			var programs []string
			for _, folder := range []string{"bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin"} {
				entries, err := os.ReadDir(filepath.Join(root, folder))
				if !os.IsNotExist(err) {
					Expect(err).NotTo(HaveOccurred())
				}
				for _, entry := range entries {
					programs = append(programs, entry.Name())
				}
			}
			Expect(programs).To(ContainElements("usher", "nft", "iptables", "ip6tables-legacy-restore"))
			Expect(programs).To(HaveEach(MatchRegexp(`^(usher|nft|ip6?tables(-nft|-legacy)?(-save|-restore)?|xtables-(nft|legacy)-multi)$`)))
			info, err := os.Stat(filepath.Join(root, "tmp"))
			Expect(err).NotTo(HaveOccurred())
			Expect(info.Mode()).To(Equal(os.ModeDir|os.ModeSticky|0o777), "any user can write there")
		}
	})

	const rules = `*nat
:USHER-TEST - [0:0]
-A PREROUTING -d ADDR -p tcp -m tcp --dport 80 -m comment --comment "a comment" -j REDIRECT --to-ports 8080
-A PREROUTING -d ADDR -p udp -m udp --dport 80 -m addrtype --dst-type LOCAL -j USHER-TEST
-A PREROUTING -d ADDR -p sctp -m sctp --dport 80 -j REDIRECT --to-ports 8080
COMMIT
`
	DescribeTable("includes an iptables that works", func(name, addr string) {
		needs("unshare", "chroot")
		in := "chroot " + roots[runtime.GOARCH] + " " + name
		cmd := exec.Command("unshare", "-n", "sh", "-c", in+"-restore --noflush && "+in+"-save -t nat")
		cmd.Stdin = strings.NewReader(strings.ReplaceAll(rules, "ADDR", addr))
		out, err := cmd.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "%s", out)
		for _, protocol := range []string{"tcp", "udp", "sctp"} {
			Expect(string(out)).To(ContainSubstring("-p " + protocol + " -m " + protocol + " --dport 80"))
		}
	},
		Entry("for IPv4", "iptables", "10.96.0.10/32"),
		Entry("for IPv6", "ip6tables", "fd00::10/128"),
		Entry("with the nft variant", "iptables-nft", "10.96.0.10/32"),
		Entry("with the legacy variant", "iptables-legacy", "10.96.0.10/32"),
		Entry("with the legacy variant for IPv6", "ip6tables-legacy", "fd00::10/128"),
	)

	It("includes an nft that works", func() {
		needs("unshare", "chroot")
		in := "chroot " + roots[runtime.GOARCH] + " nft "
		Expect(run("unshare", "-n", "sh", "-c", in+"add table inet usher-test && "+in+"list ruleset")).To(ContainSubstring("table inet usher-test"))
	})

	It("includes programs for arm64 with all their libraries", func() {
		needs("qemu-aarch64-static", "chroot")
		root := roots["arm64"]
		emulator, err := exec.LookPath("qemu-aarch64-static")
		Expect(err).NotTo(HaveOccurred())
		run("cp", emulator, root+"/qemu")
		Expect(run("chroot", root, "/qemu", "/usr/local/bin/usher", "version")).To(ContainSubstring(version))
		for _, program := range []string{"xtables-nft-multi", "xtables-legacy-multi", "nft"} {
			Expect(run("chroot", root, "/qemu", "/lib/ld-linux-aarch64.so.1", "--list", "/usr/sbin/"+program)).To(
				And(ContainSubstring("libxtables.so.12 => /lib/"), Not(ContainSubstring("not found"))))
		}
		// The nft variant would query the kernel first, and QEMU's user-mode emulation does not translate that.
		help := run("chroot", root, "/qemu", "/usr/sbin/iptables-legacy", "-m", "addrtype", "-j", "REDIRECT", "-h")
		Expect(help).To(And(ContainSubstring("Address type match options:"), ContainSubstring("REDIRECT target options:")))
	})

	It("includes an executable of usher that runs without other files", func() {
		needs("unshare", "chroot", "ip")
		empty := GinkgoT().TempDir()
		run("cp", roots[runtime.GOARCH]+"/usr/local/bin/usher", empty)
		Expect(run("unshare", "-n", "sh", "-c", "ip link set lo up && exec chroot "+empty+" /usher demo --once")).NotTo(BeEmpty())
	})

	It("creates an image that works as its non-root user without capabilities", func() {
		needs("unshare", "chroot", "ip")
		config, err := images[runtime.GOARCH].ConfigFile()
		Expect(err).NotTo(HaveOccurred())
		out := run("unshare", "-n", "sh", "-c", "ip link set lo up && exec chroot --userspec="+config.Config.User+" "+roots[runtime.GOARCH]+" /usr/local/bin/usher demo --once")
		Expect(out).To(ContainSubstring("requests had the expected outcome"))
	})

	// The Dockerfile repeats the content of label.image. The files of Debian are those of debian.lock in both.
	It("creates the same configuration and files as the Dockerfile", func() {
		needs("buildah", "debootstrap")
		commit := strings.TrimSpace(run("git", "-C", clone, "rev-parse", "HEAD"))
		file := filepath.Join(GinkgoT().TempDir(), "image.tar")
		run("env", "CONTEXT="+clone, "../../../test/dockerfile.sh", "localhost/usher:test", file, "--build-arg=VERSION="+version, "--build-arg=REVISION="+commit,
			"--build-arg=CREATED="+strings.TrimSpace(run("git", "-C", clone, "log", "-1", "--format=%cI")))
		other, err := tarball.ImageFromPath(file, nil)
		Expect(err).NotTo(HaveOccurred())

		released := images[runtime.GOARCH]
		want, err := released.ConfigFile()
		Expect(err).NotTo(HaveOccurred())
		got, err := other.ConfigFile()
		Expect(err).NotTo(HaveOccurred())
		delete(got.Config.Labels, "io.buildah.version")
		at, err := time.Parse(time.RFC3339, got.Config.Labels["org.opencontainers.image.created"]) // in the committer's time zone
		Expect(err).NotTo(HaveOccurred())
		got.Config.Labels["org.opencontainers.image.created"] = at.UTC().Format(time.RFC3339)
		Expect(got.Config).To(Equal(want.Config))
		Expect([]string{got.OS, got.Architecture}).To(Equal([]string{want.OS, want.Architecture}))

		files, otherFiles := filesOf(released), filesOf(other)
		const program, bill = "usr/local/bin/usher", "usr/share/doc/usher/usher.spdx.json"
		for _, name := range []string{program, bill} { // they contain build details, which differ
			Expect(files[name].mode).To(Equal(otherFiles[name].mode))
			delete(files, name)
			delete(otherFiles, name)
		}
		Expect(otherFiles).To(Equal(files))
		root := GinkgoT().TempDir()
		extract(other, root)
		Expect(strings.Fields(run(filepath.Join(root, program), "version"))[:3]).To(HaveExactElements("usher", version, commit[:12]))
		Expect(os.ReadFile(filepath.Join(root, bill))).To(ContainSubstring(`"name": "iptables"`))
	})
})

// filesOf returns the files of an image by path. All must belong to root. For a folder in several layers, the upper
// layer counts.
func filesOf(image v1.Image) map[string]file {
	GinkgoHelper()
	all := map[string]file{}
	stream := mutate.Extract(image)
	defer stream.Close()
	for archive := tar.NewReader(stream); ; {
		h, err := archive.Next()
		if err == io.EOF {
			return all
		}
		Expect(err).NotTo(HaveOccurred())
		Expect([]int{h.Uid, h.Gid}).To(Equal([]int{0, 0}), h.Name)
		text, err := io.ReadAll(archive)
		Expect(err).NotTo(HaveOccurred())
		all[strings.Trim(h.Name, "/")] = file{mode: h.Mode & 0o7777, text: text, link: h.Linkname, folder: h.Typeflag == tar.TypeDir}
	}
}

// extract writes the files of an image to a folder.
func extract(image v1.Image, to string) {
	GinkgoHelper()
	files := mutate.Extract(image)
	cmd := exec.Command("tar", "-x", "-p", "-C", to)
	cmd.Stdin = files
	out, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", out)
	Expect(files.Close()).To(Succeed())
}

var _ = Describe("debian.lock", func() {
	DescribeTable("is rejected", func(text, message string) {
		_, err := parseLock(strings.NewReader(text))
		Expect(err).To(MatchError(ContainSubstring(message)))
	},
		Entry("without a time", "# nothing\n", `there is no line "taken TIME"`),
		Entry("with an invalid time", "taken yesterday", "line 1: parsing time"),
		Entry("with an incomplete line", "taken 20261123T084618Z\namd64 debian/x.deb", `line 2: want "taken TIME", or architecture, path and SHA-256: "amd64 debian/x.deb"`),
		Entry("with an invalid checksum", "taken 20261123T084618Z\namd64 debian/x.deb 1234", "line 2"),
	)

	It("has the same number of packages for all architectures", func() {
		lock, err := parseLock(bytes.NewReader(lockText))
		Expect(err).NotTo(HaveOccurred())
		count := map[string]int{}
		for _, p := range lock.packages {
			count[p.arch]++
		}
		Expect(count).To(HaveLen(len(architectures)))
		Expect(count["amd64"]).To(Equal(count["arm64"]))
	})
})

var _ = Describe("a package", func() {
	DescribeTable("is rejected", func(deb, message string) {
		_, err := unpack([]byte(deb))
		Expect(err).To(MatchError(ContainSubstring(message)))
	},
		Entry("if it is another kind of file", "PK", "it is not an ar archive"),
		Entry("if it ends early", "!<arch>\n"+fmt.Sprintf("%-48s%-10s`\n", "data.tar.xz", "12345"), `member "data.tar.xz" is broken off`),
		Entry("if it is empty", "!<arch>\n", "there is no control file in it"),
		Entry("with an unsupported compression", "!<arch>\n"+fmt.Sprintf("%-48s%-10s`\n1234", "data.tar.zst", "4"), "data.tar.zst: a package of Debian's is compressed with xz or gzip"),
	)

	It("has a URL in Debian's archive, and one in its snapshot archive", func() {
		l, err := parseLock(strings.NewReader("taken 20261123T084618Z"))
		Expect(err).NotTo(HaveOccurred())
		Expect(l.urls(locked{path: "debian-security/pool/x.deb"})).To(HaveExactElements(
			"http://deb.debian.org/debian-security/pool/x.deb", "https://snapshot.debian.org/archive/debian-security/20261123T084618Z/pool/x.deb"))
	})

	Context("that was locked", func() {
		const right, wrong = "the package", "another one"
		var (
			p      locked
			dir    string
			server *httptest.Server
		)
		BeforeEach(func() {
			p, dir = locked{path: "debian/pool/x.deb", sha256: fmt.Sprintf("%x", sha256.Sum256([]byte(right)))}, GinkgoT().TempDir()
			server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/right":
					fmt.Fprint(w, right)
				case "/wrong":
					fmt.Fprint(w, wrong)
				default:
					http.NotFound(w, r)
				}
			}))
			DeferCleanup(server.Close)
		})
		kept := func() string { return filepath.Join(dir, p.sha256+".deb") }

		It("is cached, and not downloaded again", func() {
			Expect(p.fetch(dir, server.URL+"/right")).To(BeEquivalentTo(right))
			Expect(p.fetch(dir)).To(BeEquivalentTo(right))
		})
		It("is downloaded again if the cached file is a different one", func() {
			Expect(os.WriteFile(kept(), []byte(wrong), 0o644)).To(Succeed())
			Expect(p.fetch(dir, server.URL+"/right")).To(BeEquivalentTo(right))
			Expect(os.ReadFile(kept())).To(BeEquivalentTo(right))
		})
		DescribeTable("is downloaded from the second server", func(first string) {
			Expect(p.fetch(dir, server.URL+first, server.URL+"/right")).To(BeEquivalentTo(right))
		},
			Entry("if the first lacks it", "/none"),
			Entry("if the first has a different file", "/wrong"),
		)
		It("is rejected if all servers have a different file", func() {
			_, err := p.fetch(dir, server.URL+"/wrong", server.URL+"/wrong?second")
			Expect(err).To(MatchError(And(ContainSubstring("/wrong: it is not what"), ContainSubstring("/wrong?second: it is not what"), ContainSubstring("make image-lock"))))
			Expect(kept()).NotTo(BeAnExistingFile())
		})
	})
})

var _ = Describe("rootfs", func() {
	It("returns an error that names a missing program", func() {
		_, _, err := rootfs([]*debianPackage{{files: map[string]file{}}})
		Expect(err).To(MatchError("no package has usr/sbin/iptables-nft"))
	})
})
