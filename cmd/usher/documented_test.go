package main

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("commands in the documentation", func() {
	It("exist, with their flags", func() {
		commands, err := lab.Documented("../..", "usher")
		Expect(err).NotTo(HaveOccurred())
		Expect(len(commands)).To(BeNumerically(">", 100))
		Expect(commands).To(HaveKey("usher run --manifests examples/"))
		for line, args := range commands {
			Expect(lab.Known(newRoot(), args)).To(Succeed(), line)
		}
		Expect(lab.Known(newRoot(), []string{"gte"})).To(MatchError(ContainSubstring("unknown command")))
		Expect(lab.Known(newRoot(), []string{"get", "--nonsense"})).To(MatchError(ContainSubstring("unknown flag")))
	})
})
