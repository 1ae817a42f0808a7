package main

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestMarkIsShownAsRulesShowIt(t *testing.T) {
	g := NewWithT(t)
	var r runCommand
	cmd := newRunOf(&r)
	g.Expect(cmd.Flags().FlagUsages()).To(MatchRegexp(`--mark bits .*\(default 0x2000\)`))
	g.Expect(allFlags(cmd)).To(HaveKeyWithValue("mark", "0x2000"))

	for _, sixteen := range []string{"0x10", "16"} {
		g.Expect(cmd.ParseFlags([]string{"--mark=" + sixteen})).To(Succeed())
		g.Expect(r.proxyFlags.portalOptions(nil).Mark).To(BeEquivalentTo(16))
		g.Expect(r.proxyFlags.mark.String()).To(Equal("0x10"))
	}
	for _, wrong := range []string{"", "-1", "0x100000000", "red"} {
		g.Expect(cmd.ParseFlags([]string{"--mark=" + wrong})).To(MatchError(ContainSubstring("such as 0x2000")))
	}
}
