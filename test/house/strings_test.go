package house

import (
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// alert matches a text of an alert rule.
var alert = regexp.MustCompile(`(?m)^ *(?:- alert|summary|description): (.*)$`)

// shown lists every user-visible string, by folder: all strings of two words or more, and one-word messages, titles and
// help texts. A repeated string is listed once.
func shown() string {
	GinkgoHelper()
	var b strings.Builder
	all := texts()
	var folders []string
	for folder := range all {
		if top(folder) != "test" {
			folders = append(folders, folder)
		}
	}
	slices.Sort(folders)
	for _, folder := range folders {
		var lines []string
		for _, s := range all[folder].strings {
			if s.shown || s.words {
				lines = append(lines, s.text)
			}
		}
		slices.Sort(lines)
		write(&b, folder, slices.Compact(lines))
	}
	const rules = "deploy/monitoring/alerts.yaml"
	text, err := fs.ReadFile(repository, rules)
	Expect(err).NotTo(HaveOccurred())
	var lines []string
	for _, match := range alert.FindAllStringSubmatch(string(text), -1) {
		lines = append(lines, match[1])
	}
	write(&b, rules, lines)
	return strings.TrimPrefix(b.String(), "\n")
}

func write(b *strings.Builder, from string, lines []string) {
	if len(lines) > 0 {
		fmt.Fprintf(b, "\n== %s\n%s\n", from, strings.Join(lines, "\n"))
	}
}

var _ = It("all user-visible strings are listed in testdata/strings.txt", func() {
	const golden = "testdata/strings.txt"
	now := shown()
	if *update {
		Expect(os.WriteFile(golden, []byte(now), 0o644)).To(Succeed())
	}
	listed, err := os.ReadFile(golden)
	Expect(err).NotTo(HaveOccurred())
	was, is := strings.Split(string(listed), "\n"), strings.Split(now, "\n")
	var changed []string
	for _, line := range is {
		if !slices.Contains(was, line) {
			changed = append(changed, "+ "+line)
		}
	}
	for _, line := range was {
		if !slices.Contains(is, line) {
			changed = append(changed, "- "+line)
		}
	}
	Expect(now == string(listed)).To(BeTrue(), "review the changes as a first-time reader, then run go test ./test/house -update\n"+
		strings.Join(changed, "\n"))
})
