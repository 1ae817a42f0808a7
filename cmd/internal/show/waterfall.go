package show

import (
	"fmt"
	"math"
	"strings"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// Waterfall formats a connection with a bar for each attempt: its start, duration and result. Bars with results of up
// to 40 bytes fit into width; lines with long names or errors may be wider.
func Waterfall(c api.Connection, width int) []string {
	lines := []string{
		Title.Text(fmt.Sprintf("#%d %s", c.ID, Clean(servicePort(c.Service, c.Port, c.Family)))) + fmt.Sprintf("  %s  %s%s → %s", Clean(c.Protocol), Clean(c.Client), inFront(" via ", Clean(c.Via)), Clean(c.VIP)),
		fmt.Sprintf("accepted %s, %s", c.Accepted.Local().Format("15:04:05.000"), ConnectionStyle(c).Text(fate(c))),
	}
	if c.Endpoint != "" || c.State == api.Sending {
		lines = append(lines, fmt.Sprintf("%s to the endpoint, %s to the client", Bytes(float64(c.BytesToEndpoint)), Bytes(float64(c.BytesToClient))))
	}
	lines = append(lines, "")
	if len(c.Attempts) == 0 {
		if c.State == api.Sending {
			return append(lines, "No endpoint has answered.")
		}
		return append(lines, "No attempt has ended.")
	}
	span, longest := 0.0, len("no answer after 0.00 ms")
	for _, a := range c.Attempts {
		span = max(span, a.StartMs+a.DurationMs)
		longest = max(longest, len(attemptOutcome(a)))
	}
	room := max(10, min(width, 100)-min(longest, 40)-len("    "))
	seen := ""
	for _, a := range c.Attempts {
		lines = append(lines,
			fmt.Sprintf("%2d %s%s %s", a.Number, Clean(a.Endpoint), inFront(" ", Clean(a.Pod)), Quiet.Text("("+reason(a.Reason, a.Skipped)+")")),
			"   "+attemptStyle(a).Text(bar(a.StartMs, a.DurationMs, span, room))+" "+attemptStyle(a).Text(attemptOutcome(a)))
		lines = append(lines, sees("   ", a.Sees, &seen)...)
	}
	return append(lines, "   "+Quiet.Text(scale(span, room)))
}

// sees describes the source address that an endpoint sees, and why, if it differs from before, which it updates.
func sees(indent string, s api.Sees, before *string) []string {
	if s.SourceText == "" || s.SourceText == *before {
		return nil
	}
	*before = s.SourceText
	return []string{indent + Quiet.Text("the endpoint sees "+Clean(s.SourceText))}
}

// bar draws the time from start to start+took in a line that represents span and is room columns wide. It draws at
// least one column.
func bar(start, took, span float64, room int) string {
	if span <= 0 {
		return "█" + strings.Repeat(" ", room-1)
	}
	cells := func(ms float64) int { return int(math.Round(ms / span * float64(room))) }
	from := min(max(0, cells(start)), room-1)
	to := min(max(cells(start+took), from+1), room)
	return strings.Repeat(" ", from) + strings.Repeat("█", to-from) + strings.Repeat(" ", room-to)
}

// scale returns the line below the bars, with the time at each end.
func scale(span float64, room int) string {
	begin, end := "0", Milliseconds(span)
	return begin + strings.Repeat("─", max(1, room-len(begin)-len(end))) + end
}

func attemptStyle(a api.Attempt) Style {
	if a.Error == "" {
		return Good
	}
	return Care
}

// attemptOutcome describes how an attempt ended.
func attemptOutcome(a api.Attempt) string {
	if a.Error == "" {
		return Clean(a.Result) + " in " + Milliseconds(a.DurationMs)
	}
	return Clean(a.Error) + " after " + Milliseconds(a.DurationMs)
}

// fate describes the state of a connection, or how it ended.
func fate(c api.Connection) string {
	var parts []string
	if c.ConnectMs > 0 {
		parts = append(parts, "established after "+Milliseconds(c.ConnectMs))
	}
	if c.FirstByteMs > 0 && c.Protocol != "UDP" {
		parts = append(parts, "first byte after "+Milliseconds(c.FirstByteMs))
	}
	switch c.State {
	case api.Ended:
		parts = append(parts, "ended after "+Milliseconds(c.DurationMs)+": "+Clean(c.End)+inFront(", ", Clean(c.Error)))
	case api.Sending:
		parts = append(parts, "open for "+Milliseconds(c.DurationMs)+", no byte from the endpoint yet")
	case api.Connecting:
		parts = append(parts, "looking for an endpoint for "+Milliseconds(c.DurationMs))
	default:
		parts = append(parts, "open for "+Milliseconds(c.DurationMs))
	}
	return strings.Join(parts, ", ")
}

func reason(why string, skipped int) string {
	if skipped > 0 {
		return fmt.Sprintf("%s, skipped %d in quarantine", Clean(why), skipped)
	}
	return Clean(why)
}

// servicePort returns "namespace/service:port", with the suffix "/IPv6" for IPv6.
func servicePort(service, port, family string) string {
	s := service + inFront(":", port)
	if family == "IPv6" {
		s += "/IPv6"
	}
	return s
}

// inFront returns s with a prefix, or "" if s is empty.
func inFront(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}
