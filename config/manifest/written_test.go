package manifest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config/manifest"
)

// patient sets how long a file must be unchanged (quiet) or missing (confirm) before the Source acts.
func patient(quiet, confirm time.Duration) func(*manifest.Source) {
	return func(s *manifest.Source) { s.SetDebounce(quiet, confirm) }
}

// nothing expects that the Source applies nothing for some time.
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

// finish writes the rest of the file.
func finish(f *os.File, content string) {
	GinkgoHelper()
	_, err := f.WriteString(content)
	Expect(err).NotTo(HaveOccurred())
	Expect(f.Close()).To(Succeed())
}

// never is longer than any test takes, and slow longer than a busy machine pauses between two writes.
const never, slow = time.Hour, 5 * time.Second

var _ = Describe("a Source, while files change,", func() {
	var dir, a, b string
	BeforeEach(func() {
		dir = filepath.Join(GinkgoT().TempDir(), "folder")
		Expect(os.Mkdir(dir, 0o755)).To(Succeed())
		a, b = filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
		write(a, service("one", "10.96.0.1"))
		write(b, service("two", "10.96.0.2"))
	})

	DescribeTable("removes the Services of a file", func(takeAway func()) {
		r := run([]string{dir})
		takeAway()
		replace(b, service("two", "10.96.0.22"))
		r.becomes("two", "10.96.0.22")
	},
		Entry("that is deleted", func() { Expect(os.Remove(a)).To(Succeed()) }),
		Entry("that is emptied", func() { Expect(os.Truncate(a, 0)).To(Succeed()) }),
	)

	It("removes the Services of a deleted file even if another file changes continuously", func() {
		r := run([]string{dir})
		Expect(os.Remove(a)).To(Succeed())
		for i := 0; len(r.gone) == 0; i++ {
			replace(b, service("two", fmt.Sprintf("10.96.1.%d", 1+i%250)))
			r.take()
		}
		Expect(r.gone).To(Equal([]string{"one"}))
	})

	It("does not read a half-written file when it confirms the removal of another", func() {
		r := run([]string{dir}, patient(8*time.Second, 3*time.Second))
		Expect(os.Remove(a)).To(Succeed())
		write(b, service("two", "10.96.0.22"))
		r.becomes("one", "10.96.0.1", "two", "10.96.0.22") // the Source has seen the removal
		f := begin(b, service("three", "10.96.0.3"))
		r.nothing(3300 * time.Millisecond)
		finish(f, service("two", "10.96.0.23"))
		r.becomes("two", "10.96.0.23", "three", "10.96.0.3")
		Expect(r.gone).To(Equal([]string{"one"}))
	})

	It("does not read a half-written file in a folder that is created again", func() {
		r := run([]string{dir}, patient(slow, never))
		Expect(os.RemoveAll(dir)).To(Succeed())
		Expect(os.Mkdir(dir, 0o755)).To(Succeed())
		f := begin(a, service("three", "10.96.0.3"))
		r.nothing(6 * time.Second) // the Source has seen the new folder
		finish(f, service("one", "10.96.0.11"))
		r.becomes("one", "10.96.0.11", "two", "10.96.0.2", "three", "10.96.0.3")
		Expect(r.gone).To(BeEmpty())
	})

	DescribeTable("does not read a half-written file that is closed after each line", func(takeAway func(path string) error) {
		text := "apiVersion: v1\nkind: Service\nmetadata: {name: one}\nspec:\n  clusterIP: 10.96.0.1\n  ports:\n  - {name: http, port: 80}\n  - {name: admin, port: %d}\n"
		write(a, fmt.Sprintf(text, 81))
		r := run([]string{dir}, patient(slow, never))
		Expect(takeAway(a)).To(Succeed())
		for line := range strings.Lines(fmt.Sprintf(text, 82)) {
			f, err := os.OpenFile(a, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
			Expect(err).NotTo(HaveOccurred())
			finish(f, line)
			r.nothing(5 * time.Millisecond)
		}
		Expect(r.take()[0].Ports).To(ConsistOf(HaveField("VIPs", HaveExactElements(HaveField("Port", uint16(80)))), HaveField("VIPs", HaveExactElements(HaveField("Port", uint16(82))))))
		Expect(r.gone).To(BeEmpty())
	},
		Entry("after it was truncated", func(path string) error { return os.Truncate(path, 0) }),
		Entry("after it was deleted", os.Remove),
		Entry("after an editor renamed it", func(path string) error { return os.Rename(path, path+"~") }),
	)

	It("does not read a half-written file while a program keeps it open", func() {
		r := run([]string{dir}, patient(slow, never))
		f := begin(a, service("one", "10.96.0.11"))
		for i := range 20 {
			r.nothing(5 * time.Millisecond)
			_, err := f.WriteString(service(fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.1.%d", 1+i)))
			Expect(err).NotTo(HaveOccurred())
		}
		finish(f, "")
		Expect(r.take()).To(HaveLen(21))
	})

	It("applies any number of new files at once", func() {
		r := run([]string{dir}, patient(slow, never))
		want := []string{"one", "10.96.0.1", "two", "10.96.0.2"}
		for i := range 200 {
			name, ip := fmt.Sprintf("s%d", i), fmt.Sprintf("10.96.1.%d", 1+i)
			write(filepath.Join(dir, name+".yaml"), service(name, ip))
			want = append(want, name, ip)
		}
		r.becomes(want...)
		Expect(r.calls).To(Equal(2), "the initial sync, and all files")
	})
})
