package main

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/documents"
)

var _ = Describe("commands in the documentation", func() {
	It("exist, with their flags", func() {
		commands, err := documents.Commands("../..", "usher")
		Expect(err).NotTo(HaveOccurred())
		Expect(len(commands)).To(BeNumerically(">", 100))
		Expect(commands).To(HaveKey("usher run --manifests examples/"))
		for line, args := range commands {
			Expect(documents.Known(newRoot(), args)).To(Succeed(), line)
		}
		Expect(documents.Known(newRoot(), []string{"gte"})).To(MatchError(ContainSubstring("unknown command")))
		Expect(documents.Known(newRoot(), []string{"get", "--nonsense"})).To(MatchError(ContainSubstring("unknown flag")))
	})
})
