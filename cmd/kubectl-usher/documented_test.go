package main

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/documents"
)

var _ = Describe("commands in the documentation", func() {
	It("exist, with their flags", func() {
		for _, program := range []string{"kubectl-usher", "kubectl usher"} {
			commands, err := documents.Commands("../..", program)
			Expect(err).NotTo(HaveOccurred())
			Expect(commands).NotTo(BeEmpty())
			for line, args := range commands {
				Expect(documents.Known(newRoot(), args)).To(Succeed(), line)
			}
		}
		Expect(documents.Known(newRoot(), []string{"gte"})).To(MatchError(ContainSubstring("unknown command")))
		Expect(documents.Known(newRoot(), []string{"get", "--nonsense"})).To(MatchError(ContainSubstring("unknown flag")))
	})
})
