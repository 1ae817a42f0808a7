package manifest

import (
	"os"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("an error in a file", func() {
	It("is reported with the file's current path", func() {
		dir := GinkgoT().TempDir()
		a := filepath.Join(dir, "a.yaml")
		l, err := Options{Paths: []string{dir}}.loader()
		Expect(err).NotTo(HaveOccurred())
		put := func(text string) { Expect(os.WriteFile(a, []byte(text), 0o644)).To(Succeed()) }
		twice := svc("one", at("10.96.0.1")) + svc("two", at("10.96.0.1"))
		put(twice)
		Expect(l.load(list(l.paths), time.Now()).errors).To(HaveLen(1))
		there := list(l.paths)
		there.entries[0].path = dir + "/./a.yaml" // as if the folder were given a second time
		put(twice + "# more\n")
		Expect(l.load(there, time.Now()).errors).To(HaveExactElements(HaveField("File", there.entries[0].path)))
	})
})
