package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"text/tabwriter"
)

const pageHead = `# The calls of a connection, and of a change

` + "`make walk`" + ` writes this page. It lists the calls of functions, in order, for one connection, one
datagram with its answer, and one added endpoint. The portal is ` + "`none`" + `, the client sends 5 bytes and gets 5 back.
[Internals](internals.md) explains the steps.

A function that calls no other one is listed only if it is the first of its file in the section. Indented functions
are called by the one above with less indentation; an event loop calls those that are not indented, and its wait for
events is omitted. The source of Services calls ` + "`Proxy.Apply`" + `.
`

// page returns the page for the recordings.
func page(found map[string]recording) string {
	var b strings.Builder
	b.WriteString(pageHead)
	for _, section := range []struct{ event, title string }{
		{"tcp", "A TCP connection"}, {"udp", "A datagram and its answer"}, {"change", "An endpoint is added"},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n```\n", section.title)
		writeCalls(&b, found[section.event].roots, "", map[string]bool{})
		b.WriteString("```\n")
	}
	return b.String()
}

// writeCalls writes calls, each followed by its own calls. It omits a call that makes none if its file is in seen.
func writeCalls(b *strings.Builder, calls []*call, indent string, seen map[string]bool) {
	for _, c := range calls {
		if len(c.calls) > 0 || !seen[c.file] {
			fmt.Fprintf(b, "%-56s %s\n", indent+c.name, c.file)
		}
		seen[c.file] = true
		writeCalls(b, c.calls, indent+"  ", seen)
	}
}

// printFigures writes the table of figures.
func printFigures(w io.Writer, measured map[string]figures) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "event\t%s\n", strings.Join(columns[:], "\t"))
	for _, c := range ceilings {
		f, ok := measured[c.event]
		if !ok {
			continue
		}
		fmt.Fprint(t, c.name)
		for _, n := range f {
			if n == none {
				fmt.Fprint(t, "\t-")
			} else {
				fmt.Fprintf(t, "\t%d", n)
			}
		}
		fmt.Fprintln(t)
	}
	t.Flush()
}

// printLines writes how many Go files, other than tests, and lines each top-level folder has.
func printLines(w io.Writer, root string) error {
	count, lines := map[string]int{}, map[string]int{}
	err := files(root, ".", func(file string, text []byte) error {
		if path.Ext(file) == ".go" {
			folder, _, _ := strings.Cut(file, "/")
			for _, f := range []string{folder, "all"} {
				count[f]++
				lines[f] += bytes.Count(text, []byte("\n"))
			}
		}
		return nil
	})
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "folder\tfiles\tlines of Go, without tests")
	folders := slices.Sorted(maps.Keys(count))
	for _, f := range append(slices.DeleteFunc(folders, func(f string) bool { return f == "all" }), "all") {
		fmt.Fprintf(t, "%s\t%d\t%d\n", f, count[f], lines[f])
	}
	t.Flush()
	return err
}
