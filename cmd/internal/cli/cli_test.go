package cli

import (
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestCLI(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "cli")
}

var _ = DescribeTable("DidYouMean",
	func(value, says string, allowed ...string) { Expect(DidYouMean(value, allowed)).To(Equal(says)) },
	Entry("suggests a value with one more letter", "conections", "; did you mean connections?", "services", "connections"),
	Entry("suggests a value with two letters swapped", "wbe", "; did you mean web?", "web", "cart"),
	Entry("suggests a value by its prefix", "serv", "; did you mean services?", "services", "endpoints"),
	Entry("suggests only the closest value", "web2", "; did you mean web-2?", "web-2", "wear"),
	Entry("suggests several values that are equally close", "web-9", "; did you mean web-1 or web-2?", "web-1", "web-2", "cart"),
	Entry("suggests nothing if no value is similar", "mail", "", "web", "cart"),
	Entry("suggests nothing if as many letters differ as match", "xml", "", "json", "yaml", "wide"),
	Entry("suggests no short value that has little in common", "foo", "", "ok", "retry"),
	Entry("suggests nothing for a single letter", "x", "", "y", "z"),
	Entry("suggests nothing for an empty value", "", "", "web"),
)

var _ = It("fills paragraphs of help, but breaks no word at a hyphen and changes no list", func() {
	long := strings.Repeat("word ", 15) + "--endpoint-drain-timeout is\nlast"
	list := "  a  first\n  b  second"
	Expect(fillParagraphs(long + "\n\n" + list)).To(Equal(strings.TrimSpace(strings.Repeat("word ", 15)) + "\n--endpoint-drain-timeout is last\n\n" + list))
})

var _ = DescribeTable("capitalize", func(text, want string) { Expect(capitalize(text)).To(Equal(want)) },
	Entry("changes the first letter of a description", "networks of Pods", "Networks of Pods"),
	Entry("changes the last letter of a match of lowerStart", "  -o, --output format   o", "  -o, --output format   O"),
)
