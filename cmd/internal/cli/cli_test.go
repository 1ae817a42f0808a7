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
