package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/usherproxy/usher/cmd/internal/show"
)

// HelpWidth is the maximum width of lines of --help, in columns. Longer words, examples and indented lines stay whole.
const HelpWidth = 80

// groupKey is the annotation with the name of a flag's group in --help.
const groupKey = "group"

// Group puts the flags that were registered since the last call into a group of --help.
func Group(flags *pflag.FlagSet, name string) {
	flags.SortFlags = false // keep the order of registration, group by group
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Annotations[groupKey] == nil {
			_ = flags.SetAnnotation(f.Name, groupKey, []string{name}) // the flag exists
		}
	})
}

// moreKey is the annotation of flags that only --help-all prints.
const moreKey = "more"

// MainFlags registers --help-all for cmd. --help then omits all flags registered so far, except those with these names,
// which most users need.
func MainFlags(cmd *cobra.Command, names ...string) {
	flags := cmd.Flags()
	flags.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(names, f.Name) {
			_ = flags.SetAnnotation(f.Name, moreKey, nil) // the flag exists
		}
	})
	all := flags.Bool("help-all", false, "Print all flags")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !*all {
			return run(cmd, args)
		}
		flags.VisitAll(func(f *pflag.Flag) { delete(f.Annotations, moreKey) })
		return cmd.Help()
	}
}

// setUsage makes --help print text and flags in lines of HelpWidth, and flags in groups. It avoids cobra's templates:
// text/template calls methods by name, so the linker would keep every method of every library. They would be a third of
// the program.
func setUsage(root *cobra.Command) {
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		cmd.Long = fillParagraphs(cmd.Long)
		help(cmd, args)
	})
	usual := root.UsageFunc()
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		out := cmd.OutOrStderr()
		var text bytes.Buffer
		cmd.SetOut(&text)
		defer cmd.SetOut(out)
		err := usual(cmd)
		flags := cmd.LocalFlags()
		_, _ = strings.NewReplacer("Flags:\n"+strings.TrimRight(flags.FlagUsages(), " \n"), flagUsages(cmd)).WriteString(out, text.String())
		return err
	})
}

func flagUsages(cmd *cobra.Command) string {
	flags := cmd.LocalFlags()
	groups := groupsOf(flags)
	if len(groups) == 1 {
		columns := strings.TrimRight(flags.FlagUsagesWrapped(HelpWidth), "\n")
		if narrow := "\n" + strings.Repeat(" ", HelpWidth/2); width(columns) <= HelpWidth && !strings.Contains(columns, narrow) {
			return "Flags:\n" + lowerStart.ReplaceAllStringFunc(columns, capitalize)
		}
		groups[0].name = "Flags"
	}
	var b strings.Builder
	more := 0
	for _, g := range groups {
		text := ""
		for _, f := range g.flags {
			if _, is := f.Annotations[moreKey]; !is {
				text += block(f)
			} else if !f.Hidden {
				more++
			}
		}
		if text != "" {
			b.WriteString(cmp.Or(g.name, "Global flags") + ":\n" + text + "\n")
		}
	}
	if more > 0 {
		fmt.Fprintf(&b, "%d more flags: '%s --help-all'", more, cmd.CommandPath())
	}
	return strings.TrimRight(b.String(), "\n")
}

// group is a group of flags; flags without a group are in the one without a name.
type group struct {
	name  string
	flags []*pflag.Flag
}

// groupsOf returns the groups in the order of their first flags.
func groupsOf(flags *pflag.FlagSet) (groups []group) {
	flags.VisitAll(func(f *pflag.Flag) {
		name := strings.Join(f.Annotations[groupKey], "")
		i := slices.IndexFunc(groups, func(g group) bool { return g.name == name })
		if i < 0 {
			i, groups = len(groups), append(groups, group{name: name})
		}
		groups[i].flags = append(groups[i].flags, f)
	})
	return groups
}

// block returns a flag in one line, and its description below: some names and descriptions are too long for columns. It
// returns "" for a hidden flag.
func block(f *pflag.Flag) string {
	head, text := usageParts(f)
	if text == "" { // it is hidden
		return ""
	}
	const indent = "\n        "
	return "  " + head + indent + strings.Join(show.Fill(capitalize(text), HelpWidth-len(indent)), indent) + "\n"
}

// lowerStart matches a flag in pflag's columns, up to the first letter of a description that begins in lower case.
var lowerStart = regexp.MustCompile(`(?m)^ +(-\w, )?--\S+( \S+)? {2,}\p{Ll}`)

// capitalize returns text with its last letter in upper case if it is a match of lowerStart, else with its first one:
// pflag takes the name of a value, which often begins the description, from between backquotes.
func capitalize(text string) string {
	if strings.HasPrefix(text, " ") {
		return text[:len(text)-1] + strings.ToUpper(text[len(text)-1:])
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// fillParagraphs returns text with the lines of each paragraph filled up to HelpWidth. Paragraphs with indented lines,
// such as lists, stay as they are.
func fillParagraphs(text string) string {
	paragraphs := strings.Split(text, "\n\n")
	for i, p := range paragraphs {
		if !strings.HasPrefix(p, " ") && !strings.Contains(p, "\n ") {
			paragraphs[i] = strings.Join(show.Fill(p, HelpWidth), "\n")
		}
	}
	return strings.Join(paragraphs, "\n\n")
}

// width returns the number of columns of the longest line of text.
func width(text string) (columns int) {
	for line := range strings.Lines(text) {
		columns = max(columns, ansi.StringWidth(strings.TrimRight(line, "\n")))
	}
	return columns
}

// usageParts returns the two parts of a flag's usage as pflag prints it: names with the type of the value, and
// description. Both are empty for a hidden flag.
func usageParts(f *pflag.Flag) (head, text string) {
	one := pflag.NewFlagSet("", pflag.ContinueOnError)
	one.AddFlag(f)
	head, text, _ = strings.Cut(strings.TrimLeft(one.FlagUsages(), " "), "   ")
	return head, strings.TrimSuffix(strings.TrimSpace(text), " (default [])") // of maps
}
