package diagnose

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/charmbracelet/x/ansi"

	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// Result is what was found.
type Result struct {
	// Findings are what is wrong now, what hurts most clients first, and then what is over.
	Findings []Found `json:"findings"`
	// Looked is at what was looked, Services at how many of All that there are; those that do worst.
	Looked   []string `json:"looked"`
	Services int      `json:"services"`
	All      int      `json:"all"`

	details []api.ServiceDetail
}

// Found is a finding with the nodes on which it is so, if it is of a cluster.
type Found struct {
	Finding
	// Over is set of what was wrong and is so no longer. Clients is how many it has hurt in the last minutes, as far as
	// that is known.
	Over    bool     `json:"over,omitempty"`
	Clients int64    `json:"clients,omitempty"`
	Nodes   []string `json:"nodes,omitempty"`
}

// Run looks at everything.
func Run(ctx context.Context, c *client.Client, o Options) (Result, error) {
	s, err := ask(ctx, c, o)
	if err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.atMost(checkTime))
	defer cancel()
	found := make([][]Found, len(checks))
	refused := refusedLately(ctx, s)
	var looking sync.WaitGroup
	r := Result{Findings: []Found{}, Services: len(s.services), All: len(s.services), details: s.services}
	if o.Service == "" {
		r.All = max(r.All, s.status.Services)
	}
	for i, c := range checks {
		if c.name == "client" && o.Client == "" || c.name == "dns" && o.DNS == "" || c.local && o.Remote {
			continue
		}
		r.Looked = append(r.Looked, c.looks)
		looking.Go(func() {
			for _, f := range c.find(ctx, s) {
				if f.Check = c.name; s.status.Source == api.SourceFiles {
					f.Remedy = withoutCluster(f)
				}
				found[i] = append(found[i], Found{Finding: f, Over: isOver(c.name, f), Clients: s.hurt(f, refused)})
			}
		})
	}
	looking.Wait()
	r.Findings = append(r.Findings, slices.Concat(found...)...)
	r.sort()
	return r, nil
}

// Wrong reports whether something was found that is more than a note.
func (r Result) Wrong() bool {
	return slices.ContainsFunc(r.Findings, func(f Found) bool { return f.Severity != Note })
}

// Lines are what people read, in lines of width at the most.
func (r Result) Lines(width int) (lines []string) {
	last := ""
	for i, f := range r.Findings {
		if f.Over && i > 0 && !r.Findings[i-1].Over {
			lines, last = append(lines, "", "Resolved:"), ""
		}
		if head := strings.ToUpper(string(f.Severity)) + "  " + f.Object; head != last {
			if last != "" {
				lines = append(lines, "")
			}
			last = head
			lines = append(lines, show.Title.Text(show.Clean(head)))
		}
		lines = append(lines, wrapped("  ", f.Wrong, width)...)
		if f.Nodes != nil {
			lines = append(lines, wrapped("    on:        ", f.on(), width)...)
		}
		lines = append(lines, wrapped("    evidence:  ", f.Known, width)...)
		if f.Remedy != "" {
			lines = append(lines, wrapped("    next step: ", f.Remedy, width)...)
		}
	}
	nothing := "Nothing found"
	switch {
	case r.Wrong():
		return append(lines, r.rest(width)...)
	case last != "":
		nothing, lines = "Nothing else found", append(lines, "")
	}
	lines = append(lines, fmt.Sprintf("%s. Checked, of %s:", nothing, show.Plural(r.Services, "Service")))
	for _, what := range r.Looked {
		lines = append(lines, wrapped("  - ", what, width)...)
	}
	return append(lines, r.rest(width)...)
}

// rest says what was not looked at closely.
func (r Result) rest(width int) (lines []string) {
	if r.Services < r.All {
		text := fmt.Sprintf("Checked closely: the %d worst of %d Services. usher get services -A -o wide lists all.", r.Services, r.All)
		lines = append([]string{""}, wrapped("", text, width)...)
	}
	return lines
}

// wrapped breaks text between words into lines, of which the first begins with head, and all others with as
// many blanks. What is too long is cut.
func wrapped(head, text string, width int) (lines []string) {
	width = max(width-len(head), 20)
	line := ""
	end := func() {
		for _, part := range strings.Split(ansi.Hardwrap(line, width, false), "\n") {
			lines = append(lines, head+part)
			head = strings.Repeat(" ", len(head))
		}
	}
	for _, word := range strings.Fields(show.Clean(text)) {
		if line != "" && ansi.StringWidth(line)+1+ansi.StringWidth(word) > width {
			end()
			line = ""
		}
		line = strings.TrimLeft(line+" "+word, " ")
	}
	end()
	return lines
}
