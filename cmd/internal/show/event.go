package show

import (
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// Event formats an event as one line: the time, the node in a column of this width, and the text. Without a node, there
// is no such column.
func Event(node string, width int, e api.Event) string {
	if node != "" {
		node = " " + Middle(Clean(node), width)
		node += strings.Repeat(" ", max(0, width+1-ansi.StringWidth(node)))
	}
	return Quiet.Text(e.Time.Local().Format("15:04:05.000")+node) + " " + eventStyle(e).Text(Clean(e.Text))
}

func eventStyle(e api.Event) Style {
	switch e.Kind {
	case api.KindAttempt:
		if e.Error == "" {
			return Good
		}
		return Care
	case api.KindWaiting, api.KindEndpointQuarantined, api.KindEndpointProbed:
		return Care
	case api.KindClosed:
		if !NormalEnd(e.End) {
			return Bad
		}
		return Quiet
	case api.KindAccepted, api.KindEstablished:
		return Plain
	}
	return Note
}

// Missed returns the line for n missed events.
func Missed(n uint64) string {
	return Alarm.Text("… " + Plural(int(n), "step") + " missed")
}
