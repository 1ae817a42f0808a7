package demo

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/proxy/admin/api"
)

const (
	// slowAnswer is the time that a slow server takes to answer.
	slowAnswer = 2 * time.Second
	// slowAccept is the time that a server takes to accept each connection, one after the other.
	slowAccept = 500 * time.Millisecond

	minDelay, maxDelay = time.Millisecond, time.Minute
)

// fault is the fault of a server; the zero value means none.
type fault struct {
	text     string // as users write it: "reset=10%"
	kind     string // one of the api.Demo…
	perMille uint64 // the share of affected connections, for faults that have one
	delay    time.Duration
}

// faults are the possible faults, those of TCP alone last. If a fault takes a value,
// its example has one after "=".
var faults = []struct{ example, protocols, about string }{
	{api.DemoRefuse, "TCP UDP", "connections are refused, as after a process has exited"},
	{api.DemoBlackhole, "TCP UDP", "nothing is answered, as after a node has lost power"},
	{api.DemoSlow, "TCP UDP", "answers come after 2 s"},
	{api.DemoDelay + "=300ms", "TCP UDP", "answers come after this time (1ms to 1m)"},
	{api.DemoFlaky + "=10%", "TCP UDP", "connections are refused for this share of each second, as by a\nprocess that keeps restarting; for UDP, this share of datagrams\n(0.1% to 100%) gets no answer"},
	{api.DemoReset, "TCP", "connections are accepted and reset"},
	{api.DemoReset + "=10%", "TCP", "this share of connections is reset after the request, as by a\nprocess that crashes"},
	{api.DemoSlowAccept, "TCP", "two connections per second are accepted; others wait in the\nbacklog, which holds one (on Linux); further ones get no answer"},
	{api.DemoHalfOpen, "TCP", "connections are accepted, but get neither an answer nor a close:\none side is down and the other does not know (1,000 at a time;\nabove that, the oldest ends)"},
	{api.DemoHalfClose, "TCP", "the server closes its direction (FIN) without an answer and keeps\nreading: the client can still send"},
}

// Faults returns the faults that a server of this protocol accepts, as examples.
func Faults(protocol corev1.Protocol) (examples []string) {
	for _, f := range faults {
		if strings.Contains(f.protocols, string(protocol)) {
			examples = append(examples, f.example)
		}
	}
	return examples
}

// FaultHelp explains the faults, with at least a line for each.
func FaultHelp() string {
	var b strings.Builder
	for _, f := range faults {
		about := strings.ReplaceAll(f.about, "\n", "\n"+strings.Repeat(" ", 15))
		if f.example == api.DemoReset { // the first of them
			b.WriteString("\nand, for TCP servers only,\n\n")
		}
		fmt.Fprintf(&b, "  %-11s  %s\n", f.example, about)
	}
	return b.String()
}

// parseFault returns the fault in text, for a server of this protocol; "" means
// none. Errors name the server by its name, who.
func parseFault(text string, protocol corev1.Protocol, who string) (fault, error) {
	can := Faults(protocol)
	kind, value, valued := strings.Cut(text, "=")
	i := slices.IndexFunc(can, func(example string) bool {
		name, _, has := strings.Cut(example, "=")
		return name == kind && has == valued
	})
	switch {
	case text == "":
		return fault{}, nil
	case i < 0:
		return fault{}, fmt.Errorf("how: invalid value %q: must be one of %s for %s, a %s server",
			text, strings.Join(can, ", "), who, protocol)
	}
	f := fault{text: text, kind: kind}
	switch {
	case kind == api.DemoSlow:
		f.delay = slowAnswer
	case kind == api.DemoDelay:
		var err error
		if f.delay, err = time.ParseDuration(value); err != nil || f.delay < minDelay || f.delay > maxDelay {
			return fault{}, fmt.Errorf("how: %s: invalid value %q: must be a time from 1ms to 1m, such as 300ms", kind, value)
		}
	case valued:
		share, err := strconv.ParseFloat(strings.TrimSuffix(value, "%"), 64)
		if err != nil || !strings.HasSuffix(value, "%") || !(share >= 0.1 && share <= 100) {
			return fault{}, fmt.Errorf("how: %s: invalid value %q: must be a share from 0.1%% to 100%%, such as 10%%", kind, value)
		}
		f.perMille = uint64(share*10 + 0.5)
	}
	return f, nil
}

// String describes the behavior of a server with the fault.
func (f fault) String() string {
	_, share, _ := strings.Cut(f.text, "=")
	switch f.kind {
	case api.DemoRefuse:
		return "refuses connections"
	case api.DemoBlackhole:
		return "never answers"
	case api.DemoSlow, api.DemoDelay:
		return fmt.Sprintf("answers after %s", f.delay)
	case api.DemoFlaky:
		return "fails " + share + " of the time"
	case api.DemoSlowAccept:
		return "accepts two connections per second"
	case api.DemoHalfOpen:
		return "accepts, but neither answers nor closes"
	case api.DemoHalfClose:
		return "closes its direction without an answer, and keeps reading"
	case api.DemoReset:
		if f.perMille > 0 {
			return "resets " + share + " of its connections, after the request"
		}
		return "accepts, and resets at once"
	}
	return "answers at once"
}

// turns selects the connections of a share, evenly: every tenth for 10%.
type turns struct{ sum atomic.Uint64 }

func (t *turns) hit(perMille uint64) bool {
	sum := t.sum.Add(perMille)
	return sum/1000 != (sum-perMille)/1000
}
