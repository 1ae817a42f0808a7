package main

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/test/lab"
)

var _ = Describe("commands in the documentation", func() {
	It("exist, with their flags", func() {
		for _, program := range []string{"kubectl-usher", "kubectl usher"} {
			commands, err := lab.Documented("../..", program)
			Expect(err).NotTo(HaveOccurred())
			Expect(commands).NotTo(BeEmpty())
			for line, args := range commands {
				Expect(known(newRoot(), args)).To(Succeed(), line)
			}
		}
		Expect(known(newRoot(), []string{"gte"})).To(MatchError(ContainSubstring("unknown command")))
		Expect(known(newRoot(), []string{"get", "--nonsense"})).To(MatchError(ContainSubstring("unknown flag")))
	})
})

// known returns an error if root has no such command, or the command no such flag. Values may be placeholders.
func known(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil && strings.Contains(err.Error(), "unknown") {
		return err
	}
	if names := cmd.Flags().Args(); cmd.HasSubCommands() && len(names) > 0 {
		return fmt.Errorf("unknown command %q", names[0])
	}
	return nil
}
