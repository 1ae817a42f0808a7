package trace

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
)

// String returns the event in one line, without the time. It escapes nonprintable characters as Go does: errors and
// names may come from untrusted sources, and control characters could manipulate a terminal.
func (e Event) String() string {
	text := e.step()
	if strings.IndexFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) < 0 {
		return text
	}
	quoted := strconv.Quote(text)
	return plain.Replace(quoted[1 : len(quoted)-1])
}

// plain restores the printable characters that strconv.Quote escapes.
var plain = strings.NewReplacer(`\"`, `"`, `\\`, `\`)

func (e Event) step() string {
	if !e.Kind.IsStep() {
		return e.change()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "#%d %s ", e.Conn, e.Port)
	switch e.Kind {
	case Accepted:
		fmt.Fprintf(&b, "accepted %s → %s", e.Client, e.VIP)
		if e.Via != nil {
			fmt.Fprintf(&b, ", through the load balancer at %s", e.Via)
		}
	case Attempt:
		fmt.Fprintf(&b, "attempt %d → %s%s (%s%s%s): ", e.Attempt, e.Endpoint, pod(e.Pod), e.Reason, skipped(e.Skipped), as(e.SourceAddress))
		switch {
		case e.Err == "" && e.Protocol == config.UDP:
			fmt.Fprintf(&b, "answered in %s", Short(e.Duration))
		case e.Err == "":
			fmt.Fprintf(&b, "connected in %s", Short(e.Duration))
		default:
			fmt.Fprintf(&b, "%s after %s", e.Err, Short(e.Duration))
		}
	case Waiting:
		fmt.Fprintf(&b, "no other endpoint to try; waiting %s", Short(e.Duration))
	case Queued:
		fmt.Fprintf(&b, "waited in the queue for %s", Short(e.Duration))
	case Established:
		fmt.Fprintf(&b, "established with %s%s", e.Endpoint, pod(e.Pod))
	case Closed:
		fmt.Fprintf(&b, "closed after %s: %s", Short(e.Duration), e.End.Outcome)
		if e.Endpoint.IsValid() {
			fmt.Fprintf(&b, ", %d bytes to %s, %d bytes to the client", e.End.ToEndpoint, e.Endpoint, e.End.ToClient)
		}
		if e.Err != "" {
			fmt.Fprintf(&b, " (%s)", e.Err)
		}
	default:
		b.WriteString(e.Kind.String())
	}
	return b.String()
}

// change returns a change in one line.
func (e Event) change() string {
	endpoint := e.Endpoint.String() + pod(e.Pod)
	switch e.Kind {
	case ServiceAdded:
		return fmt.Sprintf("%s added, with %s", e.Port.ServiceName(), count(e.Count, "endpoint"))
	case ServiceChanged:
		return fmt.Sprintf("%s changed", e.Port)
	case ServiceRemoved:
		return fmt.Sprintf("%s removed", e.Port.ServiceName())
	case EndpointAdded:
		return fmt.Sprintf("%s endpoint %s added: %s", e.Port, endpoint, e.Reason)
	case EndpointChanged:
		return fmt.Sprintf("%s endpoint %s is now %s", e.Port, endpoint, e.Reason)
	case EndpointRemoved:
		return fmt.Sprintf("%s endpoint %s removed", e.Port, endpoint)
	case EndpointQuarantined:
		switch e.Reason {
		case ByProbe:
			return fmt.Sprintf("%s endpoint %s in quarantine (%s), first probe in %s", e.Port, endpoint, e.Err, Short(e.Duration))
		case ByProbes:
			return fmt.Sprintf("%s endpoint %s in quarantine (%s), next probe in %s", e.Port, endpoint, e.Err, Short(e.Duration))
		}
		return fmt.Sprintf("%s endpoint %s in quarantine for %s: %s", e.Port, endpoint, Short(e.Duration), e.Err)
	case EndpointProbed:
		return fmt.Sprintf("%s endpoint %s failed a probe (%s), next in %s", e.Port, endpoint, e.Err, Short(e.Duration))
	case EndpointRecovered:
		switch e.Reason {
		case ByProbe:
			return fmt.Sprintf("%s endpoint %s answers again, to a probe", e.Port, endpoint)
		case ByProbes:
			return fmt.Sprintf("%s endpoint %s recovered: its probes succeed", e.Port, endpoint)
		case NoProbes:
			return fmt.Sprintf("%s endpoint %s is no longer in quarantine: probes disabled", e.Port, endpoint)
		}
		return fmt.Sprintf("%s endpoint %s answers again", e.Port, endpoint)
	case PortalRepaired:
		return fmt.Sprintf("portal repaired: %s missing or changed", count(e.Count, "part"))
	case MoreChanges:
		return count(e.Count, "more change")
	}
	return e.Kind.String()
}

// count returns "1 thing" or "n things".
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func pod(name string) string {
	if name == "" {
		return ""
	}
	return " " + name
}

func skipped(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", skipped %d in quarantine", n)
}

// as returns ", as the client" if the endpoint sees the client's address, or else "": the node's address is the normal
// case for a proxy.
func as(s portal.SourceAddress) string {
	if s.IsClient() {
		return ", as the client"
	}
	return ""
}

// Short rounds d for display: "0.24 ms", "253 ms", "1.5 s".
func Short(d time.Duration) string {
	switch ms := float64(d) / float64(time.Millisecond); {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2f ms", ms)
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", ms)
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}
