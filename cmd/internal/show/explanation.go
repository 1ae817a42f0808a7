package show

import (
	"fmt"
	"slices"
	"strings"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// Explanation formats the expected handling of a connection.
func Explanation(e api.Explanation) []string {
	client := "an unknown client"
	if e.Client != "" {
		client = "client " + Clean(e.Client)
	}
	lines := []string{
		Title.Text(Clean(servicePort(e.Service, e.Port, e.Family))) + fmt.Sprintf("  %s  %s → %s (%s)", Clean(e.Protocol), client, Clean(e.VIP), Clean(e.VIPKind)),
		Clean(e.Policy),
	}
	style := Plain
	if e.Verdict != api.WouldTry {
		style = Bad
	}
	for _, sentence := range e.Text {
		if !repeats(sentence, e.Order) {
			lines = append(lines, style.Text(Clean(sentence)))
		}
	}
	switch {
	case len(e.Order) == 0:
	case e.Protocol == "UDP": // has no attempt timeouts: an endpoint can only refuse
		lines = append(lines, "", "Would be tried, in this order until one does not refuse:")
		lines = append(lines, candidates(e.Order, true)...)
	default:
		lines = append(lines, "", "Would be tried, in this order until one connects:")
		lines = append(lines, candidates(e.Order, true)...)
		lines = append(lines, "", "Attempt timeouts, by time slot: "+schedule(e.ScheduleMs)+".")
	}
	if len(e.NotTried) > 0 {
		lines = append(lines, "", "Would not be tried:")
		lines = append(lines, candidates(e.NotTried, false)...)
	}
	return lines
}

// repeats reports whether a sentence repeats an entry in the list of candidates.
func repeats(sentence string, list []api.Candidate) bool {
	return slices.ContainsFunc(list, func(c api.Candidate) bool {
		return strings.Contains(sentence, c.Endpoint) && strings.Contains(sentence, c.Text)
	})
}

// candidates lists endpoints, optionally numbered.
func candidates(list []api.Candidate, numbered bool) (lines []string) {
	type row struct {
		number int
		api.Candidate
	}
	var rows []row
	for i, c := range list {
		rows = append(rows, row{i + 1, c})
	}
	columns := []Column[row]{
		{Right: true, Cell: func(r row) string {
			if !numbered {
				return "-"
			}
			return fmt.Sprint(r.number)
		}},
		{Cell: func(r row) string { return Clean(r.Endpoint) }},
		{Cell: func(r row) string { return Clean(r.Pod) }},
		{Cell: func(r row) string { return Clean(r.Reason) }},
		{Cell: func(r row) string { return Quiet.Text(Clean(r.Text)) }},
	}
	seen := ""
	for i, line := range Lines(columns, rows)[1:] {
		lines = append(lines, "  "+line)
		lines = append(lines, sees("     ", list[i].Sees, &seen)...)
	}
	return lines
}

func schedule(ms []float64) string {
	var list []string
	for _, slot := range ms {
		list = append(list, Milliseconds(slot))
	}
	return strings.Join(list, ", then ")
}
