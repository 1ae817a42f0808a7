package demo

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/admin/api"
)

// Demo is a demo with running servers.
type Demo struct {
	backends
	// Dir contains the manifests of the demo's Services. If no folder can be created, as in a
	// read-only file system without /tmp, Dir is "" and Manifests contains them.
	Dir       string
	Manifests io.Reader
	noDir     error    // the reason why Dir is ""
	held      *os.File // see hold
}

// folders is the prefix of the folder names of demos.
const folders = "usher-demo-"

// Start starts the servers and writes the manifests. The caller closes the Demo.
func Start() (*Demo, error) {
	servers, err := startBackends()
	if err != nil {
		return nil, fmt.Errorf("start the demo's servers: %w", err)
	}
	d := &Demo{backends: servers}
	removeOrphans()
	if d.Dir, d.noDir = os.MkdirTemp("", folders); d.Dir != "" {
		d.held = hold(d.Dir)
	}
	var all bytes.Buffer
	d.Manifests = &all
	err = writeManifests(servers, func(file string, text []byte) error {
		if d.Dir != "" {
			return os.WriteFile(filepath.Join(d.Dir, file), text, 0o644)
		}
		_, err := fmt.Fprintf(&all, "---\n%s", text)
		return err
	})
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("write the demo's manifests: %w", err)
	}
	return d, nil
}

// Close removes the manifests and stops the servers.
func (d *Demo) Close() {
	os.RemoveAll(d.Dir) // "" removes nothing
	d.held.Close()
	d.stop()
}

// Print prints the demo's Services and servers, and how to send requests to the Services that p serves.
func (d *Demo) Print(out io.Writer, p *proxy.Proxy) {
	fmt.Fprintf(out, "\nThe Services, and how to send requests to them:\n\n")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, t := range targetsOf(p) {
		fmt.Fprintf(w, "  default/%s\t%s\t%s\n", t.name, t.about, t.command())
	}
	w.Flush()
	fmt.Fprintf(out, "\nTheir endpoints (servers in this process):\n\n")
	PrintEndpoints(out, "  ", d.describe().Items)
	if d.Dir == "" {
		fmt.Fprintf(out, "\nThe manifests are in memory only and cannot be edited: %v.\n", d.noDir)
	} else {
		fmt.Fprintf(out, "\nThe manifests are in %s.\n", d.Dir)
	}
	fmt.Fprintf(out, "The portal is %q: %s\n\n", p.Portal.Mode(), p.Portal.Traits().About)
}

// PrintEndpoints prints a line for each server.
func PrintEndpoints(out io.Writer, indent string, list []api.DemoEndpoint) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, e := range list {
		fmt.Fprintf(w, "%s%s\t%s/%s\t%s\n", indent, e.Pod, e.Endpoint, e.Protocol, e.Does)
	}
	w.Flush()
}
