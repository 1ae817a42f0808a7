package cli

import (
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
	Entry("a letter is missing", "conections", "; did you mean connections?", "services", "connections"),
	Entry("two are in the other order", "wbe", "; did you mean web?", "web", "cart"),
	Entry("the beginning", "serv", "; did you mean services?", "services", "endpoints"),
	Entry("the closest only", "web2", "; did you mean web-2?", "web-2", "wear"),
	Entry("several", "web-9", "; did you mean web-1 or web-2?", "web-1", "web-2", "cart"),
	Entry("nothing like it", "mail", "", "web", "cart"),
	Entry("as many letters differ as are the same", "xml", "", "json", "yaml", "wide"),
	Entry("a short one is allowed", "foo", "", "ok", "retry"),
	Entry("a letter is like nothing", "x", "", "y", "z"),
	Entry("nothing at all", "", "", "web"),
)
