package serve

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/trace"
)

// maxTableRows is the maximum number of service ports in the table of PrintTable: longer tables are not readable.
const maxTableRows = 100

// PrintTable prints the service ports with their VIPs, listen addresses and endpoints.
func PrintTable(out io.Writer, ports []proxy.PortView) {
	if len(ports) == 0 {
		fmt.Fprintln(out, "No Services yet.")
		return
	}
	var whole bytes.Buffer // buffered, since a tabwriter writes each cell separately
	w := tabwriter.NewWriter(&whole, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SERVICE\tPORT\tVIP\tLISTENS ON\tENDPOINTS")
	for i, p := range ports {
		if i == maxTableRows {
			fmt.Fprintf(w, "… and %d more\n", len(ports)-i)
			break
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", p.Port.ID.ServiceName(), portName(p.Port), vips(p.Port), listeners(p), endpoints(p.Port))
	}
	w.Flush()
	_, _ = whole.WriteTo(out) // if out is closed, the table has no reader
}

// portName returns "http 80/TCP".
func portName(p config.ServicePort) string {
	return strings.TrimSpace(fmt.Sprintf("%s %d/%s", p.ID.Port, p.VIPs[0].Port, p.Protocol))
}

func vips(p config.ServicePort) string {
	var list []string
	for _, v := range p.VIPs {
		if v.Kind == config.NodePort {
			list = append(list, fmt.Sprintf("node port %d", v.Port))
		} else {
			list = append(list, v.AddrPort().String())
		}
	}
	return show.Few(list)
}

func listeners(p proxy.PortView) string {
	if p.Problem != nil {
		return "not served: " + p.Problem.Err.Error()
	}
	if len(p.Listeners) == 0 {
		if len(p.Endpoints) > 0 {
			return "- (no usable endpoint here)"
		}
		return "- (refused: no endpoints)"
	}
	var list []string
	for _, l := range p.Listeners {
		list = append(list, l.String())
	}
	return show.Few(list)
}

func endpoints(p config.ServicePort) string {
	if len(p.Cluster) == 0 {
		return "none"
	}
	var list []string
	for _, e := range p.Cluster {
		list = append(list, e.Addr.String())
	}
	return show.Few(list)
}

// PrintTrace returns a function that prints steps as they arrive, until ctx ends or out is closed.
func PrintTrace(out io.Writer) func(ctx context.Context, steps *trace.Reader) {
	return func(ctx context.Context, steps *trace.Reader) {
		buf := make([]trace.Event, 64)
		for {
			n, missed, err := steps.Next(ctx, buf)
			if err != nil {
				return
			}
			if missed > 0 {
				fmt.Fprintf(out, "… %s missed\n", show.Plural(int(missed), "event"))
			}
			for _, e := range buf[:n] {
				if _, err := fmt.Fprintf(out, "%s %s\n", e.Time.Format("15:04:05.000"), e); err != nil {
					return // out is closed
				}
			}
		}
	}
}
