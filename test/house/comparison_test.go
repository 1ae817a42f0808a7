package house

import (
	"io/fs"
	"path"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("docs/comparison.md", func() {
	It("names a spec for each case, and links to the file with that spec", func() {
		text, err := fs.ReadFile(repository, "docs/comparison.md")
		Expect(err).NotTo(HaveOccurred())
		spec := regexp.MustCompile(`^\[(.+)\]\(\.\./(.+_test\.go|test/portaltest/.+\.go)\)$`)
		cases := 0
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| case ") {
				continue
			}
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
			Expect(cells).To(HaveLen(4), line)
			Expect(cells[1]).To(MatchRegexp(`^(the same|better|different)\b`), line)
			named := spec.FindStringSubmatch(strings.TrimSpace(cells[3]))
			Expect(named).NotTo(BeNil(), line)
			source, err := fs.ReadFile(repository, path.Clean(named[2]))
			Expect(err).NotTo(HaveOccurred(), line)
			Expect(strings.ReplaceAll(string(source), `\"`, `"`)).To(ContainSubstring(named[1]), line)
			cases++
		}
		Expect(cases).To(BeNumerically(">", 30))
	})
})
