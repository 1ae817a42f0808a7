package main

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("commands in the documentation", func() {
	It("exist, with their flags", func() {
		for _, program := range []string{"kubectl-usher", "kubectl usher"} {
			commands, err := lab.Documented("../..", program)
			Expect(err).NotTo(HaveOccurred())
			Expect(commands).NotTo(BeEmpty())
			for line, args := range commands {
				Expect(lab.Known(newRoot(), args)).To(Succeed(), line)
			}
		}
		Expect(lab.Known(newRoot(), []string{"gte"})).To(MatchError(ContainSubstring("unknown command")))
		Expect(lab.Known(newRoot(), []string{"get", "--nonsense"})).To(MatchError(ContainSubstring("unknown flag")))
	})
})
