package demo

import (
	"os"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = It("a new demo removes only the directories of killed demos", func() {
	temp, elsewhere := GinkgoT().TempDir(), GinkgoT().TempDir()
	GinkgoT().Setenv("TMPDIR", temp)
	old := time.Now().Add(-time.Hour)
	folder := func(name string, when time.Time) string {
		path := filepath.Join(temp, name)
		Expect(os.Mkdir(path, 0o700)).To(Succeed())
		Expect(os.WriteFile(filepath.Join(path, "web.yaml"), nil, 0o600)).To(Succeed())
		Expect(os.Chtimes(path, when, when)).To(Succeed())
		return path
	}
	running, err := Start()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(running.Close)
	Expect(os.Chtimes(running.Dir, old, old)).To(Succeed())
	killed := folder("usher-demo-1", old)
	stay := []string{running.Dir, folder("usher-demo-2", time.Now()), folder("usher-demo-mine", old)}
	if os.Geteuid() == 0 {
		others := folder("usher-demo-3", old)
		Expect(os.Chown(others, 65534, -1)).To(Succeed())
		stay = append(stay, others)
	}
	link := filepath.Join(temp, "usher-demo-4")
	Expect(os.Symlink(elsewhere, link)).To(Succeed())
	Expect(os.Chtimes(elsewhere, old, old)).To(Succeed())

	next, err := Start()
	Expect(err).NotTo(HaveOccurred())
	next.Close()
	Expect(killed).NotTo(BeADirectory())
	for _, dir := range append(stay, link, elsewhere) {
		Expect(dir).To(BeADirectory())
	}
})
