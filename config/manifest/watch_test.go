package manifest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/manifest"
)

// service returns the manifest of a Service.
func service(name, clusterIP string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {clusterIP: %s, ports: [{port: 80}]}\n---\n", name, clusterIP)
}

// running is a running Source, and the state that it has applied so far.
type running struct {
	source  *manifest.Source
	applied chan []config.Service
	log     *gbytes.Buffer
	has     map[string]string // name → cluster IP
	gone    []string          // Services removed at any time
	calls   int
	stop    func()
}

// run starts a Source and waits for the initial sync.
func run(paths []string, change ...func(*manifest.Source)) *running {
	GinkgoHelper()
	log := logrus.New()
	r := &running{applied: make(chan []config.Service, 100), log: gbytes.NewBuffer(), has: map[string]string{}}
	log.SetOutput(r.log)
	s, err := manifest.New(manifest.Options{Paths: paths, Log: log})
	Expect(err).NotTo(HaveOccurred())
	r.source = s
	for _, c := range change {
		c(s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, func(svcs []config.Service) { r.applied <- slices.Clone(svcs) }) }()
	r.stop = func() {
		cancel()
		Eventually(done).WithTimeout(30 * time.Second).Should(Receive(BeNil()))
	}
	DeferCleanup(func() { r.stop() })
	r.take()
	return r
}

// take receives one call of apply.
func (r *running) take() []config.Service {
	GinkgoHelper()
	var svcs []config.Service
	Eventually(r.applied).WithTimeout(20 * time.Second).Should(Receive(&svcs))
	r.calls++
	for _, svc := range svcs {
		delete(r.has, svc.Name.Name)
		if len(svc.Ports) > 0 {
			r.has[svc.Name.Name] = svc.Ports[0].VIPs[0].Addr.String()
		} else {
			r.gone = append(r.gone, svc.Name.Name)
		}
	}
	return svcs
}

// becomes waits until exactly these Services exist: name, cluster IP, ...
func (r *running) becomes(pairs ...string) {
	GinkgoHelper()
	want := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		want[pairs[i]] = pairs[i+1]
	}
	for !equalMaps(r.has, want) {
		r.take()
	}
	Expect(r.has).To(Equal(want))
}

func equalMaps(a, b map[string]string) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

func write(path, content string) {
	GinkgoHelper()
	Expect(os.WriteFile(path, []byte(content), 0o644)).To(Succeed())
}

// replace writes a file as editors do: it renames another file to its name.
func replace(path, content string) {
	GinkgoHelper()
	tmp := filepath.Join(filepath.Dir(path), ".tmp")
	write(tmp, content)
	Expect(os.Rename(tmp, path)).To(Succeed())
}

var _ = Describe("a Source", func() {
	var dir, a, b string

	BeforeEach(func() {
		dir = GinkgoT().TempDir()
		a, b = filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	})

	It("passes on the networks of ServiceCIDRs as they change, except invalid ones", func() {
		cidr := func(name, cidrs string) string {
			return fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: %s}\nspec: {cidrs: [%s]}\n---\n", name, cidrs)
		}
		write(a, service("one", "10.96.0.1")+cidr("kubernetes", "10.96.0.0/16, 'fd96::/112'"))
		got := make(chan []netip.Prefix, 100)
		r := run([]string{dir}, func(s *manifest.Source) { s.OnServiceCIDRs(func(cidrs []netip.Prefix) { got <- cidrs }) })
		become := func(cidrs ...string) {
			GinkgoHelper()
			var want []netip.Prefix
			for _, c := range cidrs {
				want = append(want, netip.MustParsePrefix(c))
			}
			Eventually(got).WithTimeout(20 * time.Second).Should(Receive(Equal(want)))
		}
		Expect(got).To(HaveLen(1), "before the Services")
		become("10.96.0.0/16", "fd96::/112")
		replace(b, cidr("more", "10.112.0.0/16")+cidr("again", "10.96.0.0/16"))
		become("10.96.0.0/16", "10.112.0.0/16", "fd96::/112")
		replace(b, cidr("more", "10.113.0.0/16"))
		become("10.96.0.0/16", "10.113.0.0/16", "fd96::/112")
		replace(b, cidr("more", "10.114.0.1/16"))
		Eventually(r.log).WithTimeout(20 * time.Second).Should(gbytes.Say(`b.yaml, document 1, ServiceCIDR more: spec.cidrs\[0\]: Invalid value: \\"10.114.0.1/16\\"`))
		Expect(os.Remove(b)).To(Succeed())
		become("10.96.0.0/16", "fd96::/112")
		replace(a, service("one", "10.96.0.1"))
		become()
		Expect(r.applied).NotTo(Receive(), "no Service has changed")
	})

	It("first applies all Services", func() {
		write(a, service("one", "10.96.0.1"))
		write(b, service("two", "10.96.0.2"))
		write(filepath.Join(dir, "notes.txt"), "{")
		Expect(os.Mkdir(filepath.Join(dir, "sub.yaml"), 0o755)).To(Succeed())
		r := run([]string{dir})
		Expect(r.has).To(Equal(map[string]string{"one": "10.96.0.1", "two": "10.96.0.2"}))
		Expect(r.calls).To(Equal(1))
	})

	It("first applies no Services if the folder is empty, and new ones later", func() {
		r := run([]string{dir})
		Expect(r.has).To(BeEmpty())
		write(a, service("one", "10.96.0.1"))
		r.becomes("one", "10.96.0.1")
	})

	It("fails at once if a path does not exist", func() {
		s, err := manifest.New(manifest.Options{Paths: []string{dir, filepath.Join(dir, "missing.yaml")}})
		Expect(err).NotTo(HaveOccurred())
		err = s.Run(context.Background(), func([]config.Service) { Fail("applied") })
		Expect(err).To(MatchError(os.ErrNotExist))
		Expect(err).To(MatchError(ContainSubstring("missing.yaml")))
	})

	It("applies valid objects, and logs each error once", func() {
		write(a, service("one", "10.96.0.1")+service("two", "wrong"))
		write(b, "a: [")
		r := run([]string{dir})
		Expect(r.has).To(Equal(map[string]string{"one": "10.96.0.1"}))
		write(filepath.Join(dir, "c.yaml"), service("three", "10.96.0.3"))
		r.becomes("one", "10.96.0.1", "three", "10.96.0.3")
		Expect(bytes.Count(r.log.Contents(), []byte("Service default/two: spec.clusterIPs[0]"))).To(Equal(1))
		Expect(bytes.Count(r.log.Contents(), []byte("b.yaml, document 1, line 1"))).To(Equal(1))
	})

	It("removes the Services deleted from a file that has a null document", func() {
		write(a, service("one", "10.96.0.1")+service("two", "10.96.0.2"))
		r := run([]string{dir})
		r.becomes("one", "10.96.0.1", "two", "10.96.0.2")
		replace(a, service("two", "10.96.0.2")+"---\nnull\n")
		r.becomes("two", "10.96.0.2")
		Expect(r.log.Contents()).NotTo(ContainSubstring("level=error"))
	})

	It("reports a duplicate definition of a headless Service, and the Service as served", func() {
		headless := strings.Replace(service("db", "10.96.0.1"), "10.96.0.1", "None", 1)
		write(a, headless+headless)
		var reports config.Reports
		s, err := manifest.New(manifest.Options{Paths: []string{dir}, Reports: &reports})
		Expect(err).NotTo(HaveOccurred())
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		go func() { ended <- s.Run(ctx, func([]config.Service) {}) }()
		Eventually(reports.All).Should(HaveLen(1))
		Expect(reports.All()[0].Message).To(HaveSuffix("already defined in " + a + ", document 1"))
		Expect(reports.All()[0].Served).To(BeTrue())
		cancel()
		Expect(<-ended).To(Succeed())
	})

	It("applies only the Services that changed", func() {
		write(a, service("one", "10.96.0.1")+service("two", "10.96.0.2"))
		r := run([]string{dir})
		write(a, "# moved down\n"+service("two", "10.96.0.22")+service("one", "10.96.0.1"))
		changed := r.take()
		Expect(changed).To(HaveLen(1))
		Expect(changed[0].Name.String()).To(Equal("default/two"))
	})

	It("applies a change within a second", func() {
		write(a, service("one", "10.96.0.1"))
		r := run([]string{dir})
		quickest := time.Hour // of five: other load can only delay one
		for i := 1; i <= 5 && quickest >= time.Second; i++ {
			ip := fmt.Sprintf("10.96.0.1%d", i)
			start := time.Now()
			replace(a, service("one", ip))
			r.becomes("one", ip)
			quickest = min(quickest, time.Since(start))
		}
		Expect(quickest).To(BeNumerically("<", time.Second))
	})

	DescribeTable("detects changes of a file, given by its path or its folder",
		func(path func() string) {
			write(a, service("one", "10.96.0.1"))
			r := run([]string{path()})
			By("writing into it")
			write(a, service("one", "10.96.0.2"))
			r.becomes("one", "10.96.0.2")
			By("replacing it")
			replace(a, service("one", "10.96.0.3"))
			r.becomes("one", "10.96.0.3")
			replace(a, service("one", "10.96.0.4"))
			r.becomes("one", "10.96.0.4")
			By("deleting it")
			Expect(os.Remove(a)).To(Succeed())
			r.becomes()
			By("creating it")
			write(a, service("one", "10.96.0.5"))
			r.becomes("one", "10.96.0.5")
		},
		Entry("file", func() string { return a }),
		Entry("folder", func() string { return dir }),
		Entry("symbolic link to a folder", func() string {
			link := filepath.Join(GinkgoT().TempDir(), "link")
			Expect(os.Symlink(dir, link)).To(Succeed())
			return link
		}),
	)

	DescribeTable("detects a change of a mounted ConfigMap, which replaces the link ..data",
		func(path func() string) {
			version := func(n int) {
				v := fmt.Sprintf("..v%d", n)
				Expect(os.Mkdir(filepath.Join(dir, v), 0o755)).To(Succeed())
				write(filepath.Join(dir, v, "a.yaml"), service("one", fmt.Sprintf("10.96.0.%d", n)))
				Expect(os.Symlink(v, filepath.Join(dir, "..data_tmp"))).To(Succeed())
				Expect(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))).To(Succeed())
				if n > 1 {
					Expect(os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..v%d", n-1)))).To(Succeed())
				}
			}
			version(1)
			Expect(os.Symlink(filepath.Join("..data", "a.yaml"), a)).To(Succeed())
			r := run([]string{path()})
			Expect(r.has).To(Equal(map[string]string{"one": "10.96.0.1"}))
			version(2)
			r.becomes("one", "10.96.0.2")
			version(3)
			r.becomes("one", "10.96.0.3")
		},
		Entry("file", func() string { return a }),
		Entry("folder", func() string { return dir }),
	)

	It("detects changes of a link and of the file that it points to", func() {
		far := GinkgoT().TempDir()
		target, other := filepath.Join(far, "real.yaml"), filepath.Join(far, "other.yaml")
		write(target, service("one", "10.96.0.1"))
		write(other, service("one", "10.96.0.3"))
		Expect(os.Symlink(target, a)).To(Succeed())
		r := run([]string{dir})
		replace(target, service("one", "10.96.0.2"))
		r.becomes("one", "10.96.0.2")
		Expect(os.Symlink(other, filepath.Join(dir, ".tmp"))).To(Succeed())
		Expect(os.Rename(filepath.Join(dir, ".tmp"), a)).To(Succeed())
		r.becomes("one", "10.96.0.3")
		replace(other, service("one", "10.96.0.4"))
		r.becomes("one", "10.96.0.4")
	})

	It("detects that the folder it reads is replaced", func() {
		folder := filepath.Join(dir, "folder")
		Expect(os.Mkdir(folder, 0o755)).To(Succeed())
		write(filepath.Join(folder, "a.yaml"), service("one", "10.96.0.1"))
		r := run([]string{folder})
		Expect(os.Rename(folder, folder+".old")).To(Succeed())
		Expect(os.Mkdir(folder, 0o755)).To(Succeed())
		write(filepath.Join(folder, "a.yaml"), service("one", "10.96.0.2"))
		r.becomes("one", "10.96.0.2")
		write(filepath.Join(folder, "a.yaml"), service("one", "10.96.0.3"))
		r.becomes("one", "10.96.0.3")
	})

	It("detects that the folder of the file it reads is replaced", func() {
		folder := filepath.Join(dir, "folder")
		path := filepath.Join(folder, "a.yaml")
		Expect(os.Mkdir(folder, 0o755)).To(Succeed())
		write(path, service("one", "10.96.0.1"))
		r := run([]string{path})
		Expect(os.Rename(folder, folder+".old")).To(Succeed())
		Expect(os.Mkdir(folder, 0o755)).To(Succeed())
		write(path, service("one", "10.96.0.2"))
		r.becomes("one", "10.96.0.2")
		write(path, service("one", "10.96.0.3"))
		r.becomes("one", "10.96.0.3")
	})

	It("keeps the last valid version of a file that becomes invalid, and logs the error", func() {
		write(a, service("one", "10.96.0.1"))
		r := run([]string{dir})
		write(a, "a: [")
		Eventually(r.log).WithTimeout(30 * time.Second).Should(gbytes.Say("a.yaml, document 1, line 1: did not find expected"))
		write(a, service("one", "10.96.0.2"))
		r.becomes("one", "10.96.0.2")
		Expect(r.calls).To(Equal(2), "nothing was removed in between")
	})

	It("keeps the last valid version of a file that becomes too large", func() {
		write(a, service("one", "10.96.0.1"))
		r := run([]string{dir})
		Expect(os.Truncate(a, 32<<20+1)).To(Succeed()) // in one step: no valid part of it is read
		Eventually(r.log).WithTimeout(30 * time.Second).Should(gbytes.Say("file too large: at most 33554432 bytes per file"))
		write(a, service("one", "10.96.0.3"))
		r.becomes("one", "10.96.0.3")
		Expect(r.calls).To(Equal(2))
	})

	It("keeps the last valid version of a file that cannot be examined, and logs the error", func() {
		write(a, service("one", "10.96.0.1"))
		r := run([]string{dir})
		Expect(os.Symlink(filepath.Base(a), filepath.Join(dir, ".tmp"))).To(Succeed())
		Expect(os.Rename(filepath.Join(dir, ".tmp"), a)).To(Succeed()) // a link to itself
		Eventually(r.log).WithTimeout(30 * time.Second).Should(gbytes.Say("too many levels of symbolic links"))
		write(b, service("two", "10.96.0.2"))
		Expect(names(r.take())).To(Equal([]string{"two"}))
		Expect(r.has).To(HaveKey("one"))
	})

	It("removes nothing if a file is missing or empty for a moment", func() {
		write(a, service("one", "10.96.0.1"))
		r := run([]string{dir}, patient(50*time.Millisecond, never)) // however long a busy machine takes
		// Changes of other files show that the Source has read the folder.
		Expect(os.Remove(a)).To(Succeed())
		write(b, service("two", "10.96.0.2"))
		Expect(names(r.take())).To(Equal([]string{"two"}))
		write(a, "")
		write(b, service("two", "10.96.0.3"))
		Expect(names(r.take())).To(Equal([]string{"two"}))
		write(a, service("one", "10.96.0.1"))
		write(b, service("two", "10.96.0.4"))
		Expect(names(r.take())).To(Equal([]string{"two"}))
		Expect(r.has).To(HaveKey("one"))
	})

	It("removes the Services of a file that stays empty", func() {
		write(a, service("one", "10.96.0.1"))
		r := run([]string{dir})
		write(a, "# nothing\n")
		r.becomes()
	})

	It("keeps the objects of a deleted file that another file also defines", func() {
		write(a, service("one", "10.96.0.1"))
		write(b, service("one", "10.96.0.1"))
		r := run([]string{dir})
		Expect(os.Remove(a)).To(Succeed())
		write(filepath.Join(dir, "c.yaml"), service("two", "10.96.0.2"))
		r.becomes("one", "10.96.0.1", "two", "10.96.0.2")
		write(filepath.Join(dir, "c.yaml"), service("two", "10.96.0.3"))
		r.becomes("one", "10.96.0.1", "two", "10.96.0.3")
	})

	It("polls every second if files cannot be watched, and logs it", func() {
		write(a, service("one", "10.96.0.1"))
		r := run([]string{dir}, func(s *manifest.Source) {
			s.SetNotify(func() (*fsnotify.Watcher, error) { return nil, errors.New("no more inotify instances") })
		})
		Expect(r.log).To(gbytes.Say("polling every 1s"))
		replace(a, service("one", "10.96.0.2"))
		r.becomes("one", "10.96.0.2")
		Expect(os.Remove(a)).To(Succeed())
		r.becomes()
	})

	It("returns when its context is canceled", func() {
		r := run([]string{dir})
		r.stop()
		r.stop = func() {}
	})
})

func names(svcs []config.Service) []string {
	var out []string
	for _, s := range svcs {
		out = append(out, s.Name.Name)
	}
	return out
}
