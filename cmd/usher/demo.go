package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/manifest"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/trace"
)

// demoRequests is how many requests 'usher demo --once' makes: each endpoint's
// turn comes twice.
const demoRequests = 6

func newDemo() *cobra.Command {
	var d demo
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See usher at work: needs no cluster, no root and no configuration",
		Long: `Starts three small HTTP servers in this process (one answers, one refuses
connections, one is slow to answer), writes manifests that make them the
endpoints of a Service, serves that Service through the best portal that is to
be had here, and tells line by line what happens to each connection.

As root the Service has its cluster IP on this node; without root it is on a
loopback address. Everything is removed at the end.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&d.once, "once", false, "make the requests too, print the outcome and end; the exit code is 0 only if every request succeeded")
	d.proxyFlags.register(flags)
	d.logs.register(flags, "text")
	return cmd
}

type demo struct {
	once       bool
	proxyFlags proxyFlags
	logs       logFlags
}

func (d *demo) run(cmd *cobra.Command) error {
	if err := d.proxyFlags.check(); err != nil {
		return err
	}
	log, err := d.logs.logger(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	backends, err := startBackends()
	if err != nil {
		return fmt.Errorf("starting the demo's servers: %w", err)
	}
	defer backends.stop()
	dir, err := os.MkdirTemp("", "usher-demo-")
	if err != nil {
		return fmt.Errorf("writing the demo's manifests: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := backends.writeManifests(dir); err != nil {
		return fmt.Errorf("writing the demo's manifests: %w", err)
	}
	source, err := manifest.New(manifest.Options{Paths: []string{dir}, Log: log})
	if err != nil {
		return err
	}

	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	out := cmd.OutOrStdout()
	result := make(chan error, 1)
	s := server{flags: &d.proxyFlags, log: log, out: out, trace: !d.once, demo: true}
	s.started = func(p *proxy.Proxy) {
		url := demoURL(p)
		printDemo(out, p, backends, dir)
		if !d.once {
			fmt.Fprintf(out, "In another terminal, type\n\n  curl %s\n\n", url)
			fmt.Fprintf(out, "and watch here what happens to each connection. Edit a manifest and see what\nchanges. Ctrl-C ends the demo and removes all that it installed.\n\n")
		} else {
			go func() {
				result <- makeRequests(ctx, out, p.Trace.Reader(true), url)
				cancel()
			}()
		}
	}
	if err := s.serve(ctx, func(context.Context, *server) (config.Source, error) { return source, nil }); err != nil {
		return err
	}
	if !d.once {
		return nil
	}
	select {
	case err := <-result:
		return err
	default:
		return errors.New("stopped before all requests were made")
	}
}

// demoURL returns where a client reaches the demo's Service: on its cluster IP,
// or where usher listens if no portal leads there.
func demoURL(p *proxy.Proxy) string {
	status := p.Status()[0]
	at := status.Port.VIPs[0].AddrPort()
	if p.Portal.Mode() == "none" && len(status.Listeners) > 0 {
		at = status.Listeners[0]
	}
	if at.Port() == 80 {
		return fmt.Sprintf("http://%s/", at.Addr())
	}
	return fmt.Sprintf("http://%s/", at)
}

func printDemo(out io.Writer, p *proxy.Proxy, b *backends, dir string) {
	fmt.Fprintf(out, "\nThe Service default/web has these endpoints:\n\n")
	for _, e := range b.list {
		fmt.Fprintf(out, "  %-21s %-12s %s\n", e.addr, e.name, e.does)
	}
	fmt.Fprintf(out, "\nThe manifests are in %s.\n\n", dir)
	printTable(out, p.Status())
	fmt.Fprintf(out, "\nThe portal is %q: %s\n\n", p.Portal.Mode(), portalInWords(p.Portal.Mode()))
}

// portalInWords says how a connection reaches usher.
func portalInWords(mode string) string {
	switch mode {
	case "iptables":
		return "rules in the nat table redirect what is sent to the cluster IP to usher's port."
	case "nftables":
		return "a table of nftables redirects what is sent to the cluster IP to usher's port."
	case "address":
		return "a route makes the cluster IP an address of this node, and usher listens on it."
	case "none":
		return "nothing is installed, and usher listens on a loopback address. (As root the\nService would have its cluster IP.)"
	}
	return ""
}

// makeRequests makes one request after the other, and prints each with what
// happened to its connection.
func makeRequests(ctx context.Context, out io.Writer, events *trace.Reader, url string) error {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	failed := 0
	for i := range demoRequests {
		started := time.Now()
		outcome, err := request(ctx, &client, url)
		took := time.Since(started)
		printUntilClosed(ctx, out, events)
		if err != nil {
			failed++
			fmt.Fprintf(out, "request %d FAILED after %s: %v\n\n", i+1, trace.Short(took), err)
			continue
		}
		fmt.Fprintf(out, "request %d: %s in %s\n\n", i+1, outcome, trace.Short(took))
	}
	if failed > 0 {
		return fmt.Errorf("%d of %s failed", failed, plural(demoRequests, "request"))
	}
	fmt.Fprintf(out, "All %d requests succeeded, though one of the three endpoints refuses connections.\n", demoRequests)
	return nil
}

func request(ctx context.Context, client *http.Client, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1000))
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the answer was %s", res.Status)
	}
	return fmt.Sprintf("%s, %q", res.Status, string(body)), nil
}

// printUntilClosed prints the events of one connection.
func printUntilClosed(ctx context.Context, out io.Writer, events *trace.Reader) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	buf := make([]trace.Event, 1)
	for {
		if n, _, err := events.Next(ctx, buf); err != nil || n == 0 {
			return
		}
		fmt.Fprintf(out, "%s %s\n", buf[0].Time.Format("15:04:05.000"), buf[0])
		if buf[0].Kind == trace.Closed {
			return
		}
	}
}

// backends are the demo's servers.
type backends struct {
	list  []backend
	close []func()
}

type backend struct {
	name, does string
	addr       netip.AddrPort
}

func (b *backends) stop() {
	for _, c := range b.close {
		c()
	}
}
