package cli

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/spf13/cobra"
)

var _ = Describe("a manual page", func() {
	It("has the text of --help, with roff requests escaped", func() {
		run := func(*cobra.Command, []string) {}
		root := &cobra.Command{Use: "usher", Short: "A proxy"}
		get := &cobra.Command{Use: "get [NAME]", Short: "List", Run: run, Example: "  usher get web",
			Long: "Lists what\n.is there.\n\n  a  \\b\n'c  d"}
		get.Flags().BoolP("watch", "w", false, "go on")
		Group(get.Flags(), "How")
		get.Flags().String("secret", "", "nobody is told")
		Expect(get.Flags().MarkHidden("secret")).To(Succeed())
		root.AddCommand(get, &cobra.Command{Use: "inside", Run: run, Hidden: true})
		root.InitDefaultHelpCmd()

		pages := map[string]string{}
		Expect(EachCommand(root, func(c *cobra.Command) error {
			name, text := ManualPage(c, "usher v1", "2026-01-02")
			pages[name] = text
			return nil
		})).To(Succeed())
		Expect(pages).To(HaveLen(2))
		Expect(pages["usher"]).To(ContainSubstring(".SH COMMANDS\n.TP\n.BR usher\\-get (1)\nList.\n"))
		Expect(pages["usher-get"]).To(Equal(`.TH "USHER\-GET" 1 "2026\-01\-02" "usher v1" "Manual of usher"
.SH NAME
usher\-get \- List
.SH SYNOPSIS
.B usher get [NAME] [flags]
.SH DESCRIPTION
Lists what
\&.is there.
.PP
.nf
  a  \eb
\&'c  d
.fi
.SH OPTIONS
.SS "How"
.TP
.B \-w, \-\-watch
go on
.SH EXAMPLES
.nf
  usher get web
.fi
.SH SEE ALSO
.BR usher (1)
`))
	})
})
