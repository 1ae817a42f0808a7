package strict

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("a file", func() {
	DescribeTable("is split into documents with line numbers",
		func(file string, want ...string) {
			got := []string{}
			for _, d := range Split([]byte(file)) {
				got = append(got, fmt.Sprintf("%d@%d %s", d.Number, d.Line, strings.TrimSpace(string(d.Text))))
			}
			Expect(strings.Join(got, "\n")).To(Equal(strings.Join(want, "\n")))
		},
		Entry("an empty file", ""),
		Entry("one document", "a: 1\n", "1@1 a: 1"),
		Entry("no newline at the end", "a: 1", "1@1 a: 1"),
		Entry("two documents", "a: 1\n---\nb: 2\n", "1@1 a: 1", "2@2 ---\nb: 2"),
		Entry("separators at both ends", "---\na: 1\n---\n", "1@1 ---\na: 1"),
		Entry("comments and empty documents do not count", "# x\n---\n---\n# y\n---\na: 1\n", "1@5 ---\na: 1"),
		Entry("content and comments after a separator", "--- {a: 1}\n--- # x\nb: 2", "1@1 --- {a: 1}", "2@2 --- # x\nb: 2"),
		Entry("an end marker", "a: 1\n...\n# x\n---\nb: 2", "1@1 a: 1", "2@4 ---\nb: 2"),
		Entry("directives belong to the document that follows", "%YAML 1.1\n---\na: 1", "1@1 %YAML 1.1\n---\na: 1"),
		Entry("directives of an empty document are dropped", "%YAML 1.1\n---\n# x\n---\na: 1", "1@4 ---\na: 1"),
		Entry("lines that only resemble a separator", "a: |\n ---\nb: ----\n----: 1", "1@1 a: |\n ---\nb: ----\n----: 1"),
		Entry("carriage returns", "a: 1\r\n---\r\nb: 2\r\n", "1@1 a: 1", "2@2 ---\r\nb: 2"),
		Entry("a byte order mark", "\xef\xbb\xbfa: 1", "1@1 a: 1"),
	)
})
