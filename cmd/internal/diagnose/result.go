package diagnose

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// Result has the findings about one usher instance or, from Together, about several.
type Result struct {
	// Findings are the current problems, then current notes, then past problems: see sort.
	Findings []Found `json:"findings"`
	// Looked describes the checks that ran. Services is the number of Services that were checked closely, the worst
	// ones; All is the total number.
	Looked   []string `json:"looked"`
	Services int      `json:"services"`
	All      int      `json:"all"`

	details []api.ServiceDetail
}

// Found is a finding. Nodes is only set if several nodes were diagnosed.
type Found struct {
	Finding
	// Over is set for a past problem. Failures is the number of failed attempts and connections in the last 5 to 10 minutes.
	// Since is when the state began. Both are set as far as known.
	Over     bool      `json:"over,omitempty"`
	Failures int64     `json:"failures,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Nodes    []string  `json:"nodes,omitempty"`
}

// Run runs the checks that o selects. It returns an error if usher does not respond, or has no such Service.
func Run(ctx context.Context, c *client.Client, o Options) (Result, error) {
	s, err := ask(ctx, c, o)
	if err != nil {
		return Result{}, err
	}
	found := make([][]Found, len(checks))
	refused := s.askFailed(ctx)
	ctx, cancel := context.WithTimeout(ctx, o.atMost(checkTime))
	defer cancel()
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
				if f.Check = cmp.Or(f.Check, c.name); s.status.Source == api.SourceFiles {
					f.Remedy = withoutCluster(f)
				}
				failures, since := s.impact(f, refused)
				found[i] = append(found[i], Found{Finding: f, Over: isOver(f), Failures: failures, Since: since})
			}
		})
	}
	looking.Wait()
	r.Findings = append(r.Findings, inQuarantine(slices.Concat(found...))...)
	r.sort()
	return r, nil
}

// inQuarantine merges the finding of the check "reach" about an endpoint into that about its quarantine, if there is
// one.
func inQuarantine(all []Found) (kept []Found) {
	for _, f := range all {
		i := slices.IndexFunc(kept, func(q Found) bool {
			name, _, is := strings.Cut(q.Wrong, " is in quarantine: ")
			return f.Check == "reach" && is && q.Object == f.Object && strings.HasPrefix(f.Wrong, name+" ")
		})
		if i < 0 {
			kept = append(kept, f)
			continue
		}
		kept[i].Known += "; " + f.Known
		kept[i].Remedy = f.Remedy
	}
	return kept
}

// Wrong reports whether there is a finding above a note.
func (r Result) Wrong() bool {
	return slices.ContainsFunc(r.Findings, func(f Found) bool { return f.Severity != Note })
}

// Lines formats the result for users, in lines of at most width columns.
func (r Result) Lines(width int) (lines []string) {
	last := ""
	for i, f := range r.Findings {
		if f.Over && (i == 0 || !r.Findings[i-1].Over) {
			if i > 0 {
				lines = append(lines, "")
			}
			lines, last = append(lines, "Resolved:"), ""
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
		if text := f.impact(); text != "" {
			lines = append(lines, wrapped("    impact:    ", text, width)...)
		}
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
	lines = append(lines, fmt.Sprintf("%s. Checks of %s:", nothing, show.Plural(r.Services, "Service")))
	for _, what := range r.Looked {
		lines = append(lines, wrapped("  - ", what, width)...)
	}
	return append(lines, r.rest(width)...)
}

// impact describes how many failures a finding has caused, and since when.
func (f Found) impact() string {
	var parts []string
	if f.Failures > 0 {
		parts = append(parts, show.Plural(int(f.Failures), "failure")+" in the last 5 to 10 minutes")
	}
	if !f.Since.IsZero() {
		parts = append(parts, "in this state since "+f.Since.Local().Format(time.DateTime))
	}
	return strings.Join(parts, ", ")
}

// rest reports that not all Services were checked closely.
func (r Result) rest(width int) (lines []string) {
	if r.Services < r.All {
		text := fmt.Sprintf("Checked closely: the %d worst of %d Services. usher get services -A -o wide lists all.", r.Services, r.All)
		lines = append([]string{""}, wrapped("", text, width)...)
	}
	return lines
}

// wrapped wraps text between words into lines. The first line begins with head, all others with as many blanks. Words
// that are longer than a line are split.
func wrapped(head, text string, width int) (lines []string) {
	width = max(width-len(head), 20)
	for _, line := range show.Fill(show.Clean(text), width) {
		for _, part := range strings.Split(ansi.Hardwrap(line, width, false), "\n") {
			lines = append(lines, head+part)
			head = strings.Repeat(" ", len(head))
		}
	}
	return lines
}
