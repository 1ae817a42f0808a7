package manifest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config/manifest"
)

// patient is a Source that believes what has been quiet for settle, and that is gone for confirm.
func patient(settle, confirm time.Duration) func(*manifest.Source) {
	return func(s *manifest.Source) { s.SetPatience(settle, confirm) }
}

// nothing expects that nothing is applied for some time.
func (r *running) nothing(d time.Duration) {
	GinkgoHelper()
	Consistently(r.applied).WithTimeout(d).ShouldNot(Receive())
}

// begin opens a file and writes the first part of it.
func begin(path, content string) *os.File {
	GinkgoHelper()
	f, err := os.Create(path)
	Expect(err).NotTo(HaveOccurred())
	_, err = f.WriteString(content)
	Expect(err).NotTo(HaveOccurred())
	return f
}

// finish writes the rest.
func finish(f *os.File, content string) {
	GinkgoHelper()
	_, err := f.WriteString(content)
	Expect(err).NotTo(HaveOccurred())
	Expect(f.Close()).To(Succeed())
}

// never is longer than any test takes.
const never = time.Hour

// ports is the manifest of a Service with these ports.
func ports(n ...int) string {
	text := strings.TrimSuffix(service("ports", "10.96.0.3"), "---\n")
	var all []string
	for _, n := range n {
		all = append(all, fmt.Sprintf("{name: p%d, port: %d}", n, n))
	}
	return strings.Replace(text, "{port: 80}", strings.Join(all, ", "), 1) + "---\n"
}

var _ = Describe("a file that changes while all is quiet", func() {
	var dir, a, b string
	one, two := service("one", "10.96.0.1"), service("two", "10.96.0.2")
	BeforeEach(func() {
		if runtime.GOOS != "linux" {
			Skip("it cannot be told who has a file open")
		}
		dir = GinkgoT().TempDir()
		a, b = filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
		write(a, one+two)
	})

	It("is believed at once when it is put in its place", func() {
		r := run([]string{dir}, patient(never, never))
		replace(a, service("one", "10.96.0.11")+two)
		r.becomes("one", "10.96.0.11", "two", "10.96.0.2")
	})

	It("is believed at once when it is new, and when it is given by itself", func() {
		r := run([]string{dir}, patient(never, never))
		write(b, service("three", "10.96.0.3"))
		r.becomes("one", "10.96.0.1", "two", "10.96.0.2", "three", "10.96.0.3")
		r = run([]string{a}, patient(never, never))
		write(a, one+service("two", "10.96.0.22"))
		r.becomes("one", "10.96.0.1", "two", "10.96.0.22")
	})

	It("is believed as soon as it is closed", func() {
		r := run([]string{dir}, patient(never, never))
		f := begin(a, service("one", "10.96.0.11"))
		r.nothing(50 * time.Millisecond)
		finish(f, service("two", "10.96.0.22"))
		r.becomes("one", "10.96.0.11", "two", "10.96.0.22")
	})

	DescribeTable("waits to settle, and all others with it, when it", func(change func()) {
		write(a, one+two+ports(80, 81))
		r := run([]string{dir}, patient(never, never))
		change()
		r.nothing(50 * time.Millisecond)
		write(b, service("four", "10.96.0.4"))
		r.nothing(50 * time.Millisecond)
	},
		Entry("is deleted", func() { Expect(os.Remove(a)).To(Succeed()) }),
		Entry("is empty", func() { Expect(os.Truncate(a, 0)).To(Succeed()) }),
		Entry("lacks an object", func() { replace(a, one+ports(80, 81)+strings.Repeat("#", 1000)) }),
		Entry("says something wrong", func() { replace(a, one+two+ports(80, 81)+"a: [") }),
		Entry("lacks a port and is the same file", func() { write(a, one+two+ports(80)+strings.Repeat("#", 1000)) }),
		Entry("is shorter and is the same file", func() { write(a, service("one", "10.96.0.9")+two+ports(1, 2)) }),
	)

	It("may lack a port when it is put in its place whole", func() {
		write(a, ports(80, 81))
		r := run([]string{dir}, patient(never, never))
		replace(a, ports(80))
		Expect(r.take()[0].Ports).To(HaveLen(1))
	})

	It("is one that a link does not lead to", func() {
		far := filepath.Join(GinkgoT().TempDir(), "far.yaml")
		write(far, service("three", "10.96.0.3"))
		Expect(os.Symlink(far, b)).To(Succeed())
		r := run([]string{dir}, patient(never, never))
		replace(far, service("three", "10.96.0.33"))
		r.nothing(50 * time.Millisecond)
	})
})

var _ = Describe("what changes while something else does", func() {
	var dir, a, b string
	BeforeEach(func() {
		dir = filepath.Join(GinkgoT().TempDir(), "folder")
		Expect(os.Mkdir(dir, 0o755)).To(Succeed())
		a, b = filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
		write(a, service("one", "10.96.0.1"))
		write(b, service("two", "10.96.0.2"))
	})

	DescribeTable("does not keep a file for ever", func(takeAway func()) {
		r := run([]string{dir})
		takeAway()
		replace(b, service("two", "10.96.0.22"))
		r.becomes("two", "10.96.0.22")
	},
		Entry("that is deleted", func() { Expect(os.Remove(a)).To(Succeed()) }),
		Entry("that is emptied", func() { Expect(os.Truncate(a, 0)).To(Succeed()) }),
	)

	It("does not keep a file that is deleted, even if it never ends", func() {
		r := run([]string{dir})
		Expect(os.Remove(a)).To(Succeed())
		for i := 0; len(r.gone) == 0; i++ {
			replace(b, service("two", fmt.Sprintf("10.96.1.%d", 1+i%250)))
			r.take()
		}
		Expect(r.gone).To(Equal([]string{"one"}))
	})

	It("is not believed half when it is time to confirm that another is gone", func() {
		r := run([]string{dir}, patient(4*time.Second, time.Second))
		Expect(os.Remove(a)).To(Succeed())
		write(b, service("two", "10.96.0.22"))
		r.becomes("one", "10.96.0.1", "two", "10.96.0.22") // the removal has been seen
		f := begin(b, service("three", "10.96.0.3"))
		r.nothing(1300 * time.Millisecond)
		finish(f, service("two", "10.96.0.23"))
		r.becomes("two", "10.96.0.23", "three", "10.96.0.3")
		Expect(r.gone).To(Equal([]string{"one"}))
	})

	It("is not believed half in a folder that is made again", func() {
		r := run([]string{dir}, patient(time.Second, never))
		Expect(os.RemoveAll(dir)).To(Succeed())
		Expect(os.Mkdir(dir, 0o755)).To(Succeed())
		f := begin(a, service("three", "10.96.0.3"))
		r.nothing(1300 * time.Millisecond) // it has been seen that there is another folder
		finish(f, service("one", "10.96.0.11"))
		r.becomes("one", "10.96.0.11", "two", "10.96.0.2", "three", "10.96.0.3")
		Expect(r.gone).To(BeEmpty())
	})

	It("is not believed half when it is written by line, and the file closed each time", func() {
		text := "apiVersion: v1\nkind: Service\nmetadata: {name: one}\nspec:\n  clusterIP: 10.96.0.1\n  ports:\n  - {name: http, port: 80}\n  - {name: admin, port: %d}\n"
		write(a, fmt.Sprintf(text, 81))
		r := run([]string{dir}, patient(time.Second, never))
		Expect(os.Truncate(a, 0)).To(Succeed())
		for line := range strings.Lines(fmt.Sprintf(text, 82)) {
			f, err := os.OpenFile(a, os.O_APPEND|os.O_WRONLY, 0)
			Expect(err).NotTo(HaveOccurred())
			finish(f, line)
			r.nothing(5 * time.Millisecond)
		}
		Expect(r.take()[0].Ports).To(ConsistOf(HaveField("VIPs", HaveExactElements(HaveField("Port", uint16(80)))), HaveField("VIPs", HaveExactElements(HaveField("Port", uint16(82))))))
	})

	It("costs one look, however many files it is", func() {
		r := run([]string{dir}, patient(time.Second, never))
		want := []string{"one", "10.96.0.1", "two", "10.96.0.2"}
		for i := range 200 {
			name, ip := fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.1.%d", 1+i)
			write(filepath.Join(dir, name+".yaml"), service(name, ip))
			want = append(want, name, ip)
		}
		r.becomes(want...)
		Expect(r.calls).To(BeNumerically("<=", 3), "the first picture, the first file, and all others")
	})
})

// late is a Source whose events come not before there are things to be heard of.
func late() (heard func(), change func(*manifest.Source)) {
	GinkgoHelper()
	w, err := fsnotify.NewWatcher()
	Expect(err).NotTo(HaveOccurred())
	events, held := w.Events, make(chan fsnotify.Event)
	w.Events = held
	heard = func() {
		done := make(chan struct{})
		DeferCleanup(func() { close(done) })
		go func() {
			for e := range events {
				select {
				case held <- e:
				case <-done:
					return
				}
			}
		}()
	}
	return heard, func(s *manifest.Source) {
		s.SetPatience(never, never)
		s.SetNotify(func() (*fsnotify.Watcher, error) { return w, nil })
	}
}

var _ = Describe("a file that is made anew, by line, and closed each time", func() {
	DescribeTable("is not believed half when it is heard late that there was another", func(takeAway func(path string) error) {
		if runtime.GOOS != "linux" {
			Skip("it cannot be told who has a file open")
		}
		a := filepath.Join(GinkgoT().TempDir(), "a.yaml")
		write(a, ports(80, 81))
		heard, change := late()
		r := run([]string{filepath.Dir(a)}, change)
		Expect(takeAway(a)).To(Succeed())
		write(a, ports(80))
		heard()
		r.nothing(50 * time.Millisecond)
	},
		Entry("that was deleted", os.Remove),
		Entry("that was kept under another name", func(path string) error { return os.Rename(path, path+"~") }),
	)
})
