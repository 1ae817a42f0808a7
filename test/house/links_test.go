package house

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing/fstest"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var (
	codeBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	codeSpan  = regexp.MustCompile("`[^`\n]*`")
	// [text](link), [text](link "title"), [text]: link, and HTML attributes.
	link    = regexp.MustCompile(`\]\(([^()\s]+)[^()]*\)|(?m:^\[[^]]+\]: *(\S+))|(?:src|srcset|href)="([^"]+)"`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*?) *#*$`)
	// Characters that GitHub omits from a heading's anchor.
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	linkText    = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
)

// anchorsOf returns the anchors that GitHub assigns to the headings of a document.
func anchorsOf(text string) map[string]bool {
	anchors := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
		title := linkText.ReplaceAllString(match[1], "$1")
		anchor := strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
		unique := anchor
		for n := 1; anchors[unique]; n++ {
			unique = fmt.Sprintf("%s-%d", anchor, n)
		}
		anchors[unique] = true
	}
	return anchors
}

// deadLinks returns the broken links of the document at file: those to a file, folder or heading of the repository that
// does not exist. External links are not checked.
func deadLinks(in fs.FS, file, text string) (dead []string) {
	prose := codeSpan.ReplaceAllString(codeBlock.ReplaceAllString(text, ""), "")
	for _, match := range link.FindAllStringSubmatch(prose, -1) {
		to := match[1] + match[2] + match[3]
		if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
			continue
		}
		name, anchor, _ := strings.Cut(to, "#")
		target, content := file, text
		if name != "" {
			target = path.Join(path.Dir(file), name)
			info, err := fs.Stat(in, target)
			if err != nil {
				dead = append(dead, fmt.Sprintf("%s links to %s, and there is no %s", file, to, target))
				continue
			}
			if anchor == "" || info.IsDir() {
				continue
			}
			bytes, err := fs.ReadFile(in, target)
			Expect(err).NotTo(HaveOccurred())
			content = string(bytes)
		}
		if strings.HasSuffix(target, ".md") && !anchorsOf(content)[anchor] {
			dead = append(dead, fmt.Sprintf("%s links to %s, and %s has no such heading", file, to, target))
		}
	}
	return dead
}

var _ = Describe("the documents", func() {
	It("have no broken links", func() {
		files := filesNamed(".md")
		Expect(files).To(ContainElements("README.md", "docs/running.md"))
		var dead []string
		for _, file := range files {
			text, err := fs.ReadFile(repository, file)
			Expect(err).NotTo(HaveOccurred())
			dead = append(dead, deadLinks(repository, file, string(text))...)
		}
		Expect(dead).To(BeEmpty(), strings.Join(dead, "\n"))
	})

	It("in docs are all linked from its index", func() {
		const index = "docs/README.md"
		text, err := fs.ReadFile(repository, index)
		Expect(err).NotTo(HaveOccurred())
		for _, file := range filesNamed(".md") {
			if path.Dir(file) == "docs" && file != index {
				Expect(string(text)).To(ContainSubstring("("+path.Base(file)+")"), "%s has no link to %s", index, file)
			}
		}
	})

	It("start with a README of at most 110 lines", func() {
		text, err := fs.ReadFile(repository, "README.md")
		Expect(err).NotTo(HaveOccurred())
		Expect(strings.Count(string(text), "\n")).To(BeNumerically("<=", 110), "lines of README.md")
	})

	DescribeTable("are checked for broken links",
		func(text string, says ...string) {
			in := fstest.MapFS{
				"docs/a.md": {Data: []byte(text)},
				"docs/b.md": {Data: []byte("# One `--flag`, two\n## Again\n## Again\n```\n# code\n```\n")},
				"code.go":   {},
			}
			Expect(deadLinks(in, "docs/a.md", text)).To(HaveExactElements(says))
		},
		Entry("to a missing file", "see\n[x](c.md)", "docs/a.md links to c.md, and there is no docs/c.md"),
		Entry("outside the folder", "[x](../code.go) [y](../gone.go)", "docs/a.md links to ../gone.go, and there is no gone.go"),
		Entry("to a missing heading", "[x](b.md#three)", "docs/a.md links to b.md#three, and docs/b.md has no such heading"),
		Entry("to a heading of the same document", "# Here\n[x](#here) [y](#there)", "docs/a.md links to #there, and docs/a.md has no such heading"),
		Entry("to a heading that is only in code", "[x](b.md#code)", "docs/a.md links to b.md#code, and docs/b.md has no such heading"),
		Entry("in HTML", `<img src="no.png">`, "docs/a.md links to no.png, and there is no docs/no.png"),
		Entry("in a reference", "[x]: no.md", "docs/a.md links to no.md, and there is no docs/no.md"),
		Entry("but not for valid links", "[a](b.md#one---flag-two) [b](b.md#again-1 \"title\") [c](../docs) [d](https://example.com/no.md)"),
		Entry("but not in code", "`[x](no.md)`\n```\n[x](no.md)\n```\n"),
	)
})
