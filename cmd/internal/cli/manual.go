package cli

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// ManualPage returns the page of section 1 for a command, and its name without the section: usher-run for "usher run".
// The page has the text of --help, in the macros of man(7). Its last line has source, such as "usher v1.2.3", and date;
// both may be empty. cobra's own pages lack the groups of flags, and treat the texts as Markdown, which they are not.
func ManualPage(cmd *cobra.Command, source, date string) (name, text string) {
	name = pageName(cmd)
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 %s %s %s\n", quote(strings.ToUpper(name)), quote(date), quote(source), quote("Manual of "+cmd.Root().Name()))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", escape(name), escape(cmd.Short))
	b.WriteString(".SH SYNOPSIS\n")
	if cmd.Runnable() {
		fmt.Fprintf(&b, ".B %s\n", escape(cmd.UseLine()))
	}
	subcommands := availableOf(cmd)
	if len(subcommands) > 0 {
		fmt.Fprintf(&b, ".br\n.B %s\n[command]\n", escape(cmd.CommandPath()))
	}
	b.WriteString(".SH DESCRIPTION\n")
	prose(&b, cmp.Or(cmd.Long, cmd.Short+"."))
	if len(subcommands) > 0 {
		b.WriteString(".SH COMMANDS\n")
		for _, sub := range subcommands {
			fmt.Fprintf(&b, ".TP\n.BR %s (1)\n%s.\n", escape(pageName(sub)), escape(sub.Short))
		}
	}
	if cmd.HasAvailableLocalFlags() {
		b.WriteString(".SH OPTIONS\n")
		for _, g := range groupsOf(cmd.LocalFlags()) {
			if g.name != "" {
				fmt.Fprintf(&b, ".SS %s\n", quote(g.name))
			}
			for _, f := range g.flags {
				if head, text := usageParts(f); text != "" {
					fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", escape(head), escape(text))
				}
			}
		}
	}
	if cmd.HasExample() {
		b.WriteString(".SH EXAMPLES\n")
		verbatim(&b, cmd.Example)
	}
	if cmd.HasParent() {
		fmt.Fprintf(&b, ".SH SEE ALSO\n.BR %s (1)\n", escape(pageName(cmd.Parent())))
	}
	return name, b.String()
}

// EachCommand calls f with root and all commands below it that --help lists, except help. It stops at the first error
// and returns it.
func EachCommand(root *cobra.Command, f func(*cobra.Command) error) error {
	if err := f(root); err != nil {
		return err
	}
	for _, sub := range availableOf(root) {
		if err := EachCommand(sub, f); err != nil {
			return err
		}
	}
	return nil
}

func availableOf(cmd *cobra.Command) (list []*cobra.Command) {
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" {
			list = append(list, sub)
		}
	}
	return list
}

func pageName(cmd *cobra.Command) string {
	return strings.ReplaceAll(cmd.CommandPath(), " ", "-")
}

// prose writes paragraphs. A paragraph with an indented line keeps its line breaks.
func prose(b *strings.Builder, text string) {
	for i, paragraph := range strings.Split(strings.Trim(text, "\n"), "\n\n") {
		if i > 0 {
			b.WriteString(".PP\n")
		}
		if strings.HasPrefix(paragraph, " ") || strings.HasPrefix(paragraph, "\t") || strings.Contains(paragraph, "\n ") {
			verbatim(b, paragraph)
			continue
		}
		b.WriteString(escape(paragraph) + "\n")
	}
}

// verbatim writes lines unchanged.
func verbatim(b *strings.Builder, text string) {
	b.WriteString(".nf\n" + escape(strings.Trim(text, "\n")) + "\n.fi\n")
}

var special = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n.", "\n\\&.", "\n'", "\n\\&'", "\t", "    ")

// escape escapes text so that troff treats no line as a request, and copied options have plain hyphens.
func escape(text string) string {
	return strings.TrimPrefix(special.Replace("\n"+text), "\n")
}

// quote returns text as one argument of a macro.
func quote(text string) string {
	return `"` + strings.ReplaceAll(escape(text), `"`, `\(dq`) + `"`
}

// newManual returns a hidden command, which builds of packages run: see deploy/release.
func newManual() *cobra.Command {
	return &cobra.Command{
		Use:    "manual FOLDER",
		Short:  "Write manual pages to a folder, one per command",
		Hidden: true,
		Args:   Takes(1, 1, "one FOLDER"),
		RunE: func(cmd *cobra.Command, args []string) error {
			date, _, _ := strings.Cut(setting("vcs.time"), "T")
			return EachCommand(cmd.Root(), func(c *cobra.Command) error {
				name, text := ManualPage(c, "usher "+Version, date)
				return os.WriteFile(filepath.Join(args[0], name+".1"), []byte(text), 0o644)
			})
		},
	}
}
