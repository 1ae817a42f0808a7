package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/manifest"
	"github.com/usherproxy/usher/proxy"
)

func newDemo() *cobra.Command {
	var d demo
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See usher at work: needs no cluster, no root and no configuration",
		Long: `Starts some small servers in this process, writes manifests that make them the
endpoints of Services (one that is healthy, one with an endpoint that refuses
connections, one with an endpoint that never answers, one with session affinity,
one for UDP, one without endpoints), serves these through the best portal that is
to be had here, and tells line by line what happens to each connection. It also
serves usher's API, which the other commands ask, and its pages.

As root the Services have their cluster IPs on this node; without root they are
on loopback addresses. Everything is removed at the end.

From another terminal, 'usher demo break' and 'usher demo mend' change what the
servers do, and 'usher top', 'usher trace', 'usher explain' and 'usher get' show
what comes of it.`,
		Example: `  usher demo                            # and then, in another terminal:
  usher demo break web-2 blackhole
  usher demo endpoints
  usher demo mend --all

  usher demo --ask-every=1s             # its own clients ask every Service
  usher demo --once                     # ask, tell, end`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&d.once, "once", false, "make the requests too, print the outcome and end; the exit code is 0 only if every request came out as it should")
	flags.DurationVar(&d.askEvery, "ask-every", 0, "how often each Service is asked by a client in this process; 0 means never")
	flags.StringVar(&d.admin.admin, "admin-address", defaultAdminAddress, "`host:port` for the API and the pages; if the default is taken, another port is used; empty means none")
	d.proxyFlags.register(flags)
	setDefault(flags, "quarantine-max", "5s") // who has mended an endpoint wants to see it
	d.logs.register(flags, "text")
	cmd.AddCommand(newDemoBreak(), newDemoMend(), newDemoEndpoints())
	return cmd
}

type demo struct {
	once       bool
	askEvery   time.Duration
	admin      adminFlags
	proxyFlags proxyFlags
	logs       logFlags
}

func (d *demo) run(cmd *cobra.Command) error {
	if err := d.check(cmd); err != nil {
		return err
	}
	log, err := d.logs.logger(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	servers, err := startBackends()
	if err != nil {
		return fmt.Errorf("starting the demo's servers: %w", err)
	}
	defer servers.stop()
	dir, err := os.MkdirTemp("", "usher-demo-")
	if err != nil {
		return fmt.Errorf("writing the demo's manifests: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := writeManifests(dir, servers); err != nil {
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
	s := server{flags: &d.proxyFlags, admin: &d.admin, log: log, out: out, trace: !d.once, demo: true,
		settings: allFlags(cmd), wrapAdmin: servers.withDemo}
	s.started = func(p *proxy.Proxy) {
		targets := demoTargets(p)
		printDemo(out, p, targets, servers, dir)
		if d.once {
			go func() {
				result <- askAll(ctx, out, p.Trace.Reader(true), targets)
				cancel()
			}()
			return
		}
		printHowToGoOn(out, s.adminAddress())
		if d.askEvery > 0 {
			go keepAsking(ctx, targets, d.askEvery)
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

// check returns an error that names the flag that is wrong, and chooses another
// port for the API if nobody asked for this one.
func (d *demo) check(cmd *cobra.Command) error {
	if err := d.proxyFlags.check(); err != nil {
		return err
	}
	if d.askEvery < 0 {
		return usagef("--ask-every: %s is less than 0", d.askEvery)
	}
	if cmd.Flags().Changed("admin-address") {
		d.admin.hardFail = true
		return nil
	}
	l, err := net.Listen("tcp", d.admin.admin)
	if err != nil {
		d.admin.admin = "127.0.0.1:0"
		return nil
	}
	return l.Close()
}

func printDemo(out io.Writer, p *proxy.Proxy, targets []demoTarget, servers backends, dir string) {
	fmt.Fprintf(out, "\nThe Services, and how to ask them:\n\n")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, t := range targets {
		fmt.Fprintf(w, "  default/%s\t%s\t%s\n", t.name, t.about, t.command())
	}
	w.Flush()
	fmt.Fprintf(out, "\nTheir endpoints, servers in this process:\n\n")
	printDemoEndpoints(out, "  ", servers.tell().Items)
	fmt.Fprintf(out, "\nThe manifests are in %s.\n", dir)
	fmt.Fprintf(out, "The portal is %q: %s\n\n", p.Portal.Mode(), portalInWords(p.Portal.Mode()))
}

// printHowToGoOn tells what to type next. api is where usher's API is served, ""
// for nowhere.
func printHowToGoOn(out io.Writer, api string) {
	if api == "" {
		fmt.Fprintf(out, "Ask a Service from another terminal, and watch here what happens to each\nconnection. Ctrl-C ends the demo and removes all that it installed.\n\n")
		return
	}
	flag := ""
	if api != defaultAdminAddress {
		flag = " --admin-address=" + api
	}
	fmt.Fprintf(out, "Open http://%s/ in a browser, or type in another terminal\n\n", api)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, line := range [][2]string{
		{"usher top", "what is going on, full screen"},
		{"usher get services -A", "how the Services fare"},
		{"usher explain refusing", "which endpoint would be tried, and why"},
		{"usher demo break web-2 blackhole", "break an endpoint: refuse, blackhole, slow, reset"},
		{"usher demo mend --all", "mend them all"},
	} {
		fmt.Fprintf(w, "  %s%s\t%s\n", line[0], flag, line[1])
	}
	w.Flush()
	fmt.Fprintf(out, "\nand watch here what happens to each connection. Edit a manifest and see what\nchanges. Ctrl-C ends the demo and removes all that it installed.\n\n")
}

// portalInWords says how a connection reaches usher.
func portalInWords(mode string) string {
	switch mode {
	case "iptables":
		return "rules in the nat table redirect what is sent to a\ncluster IP to usher's port."
	case "nftables":
		return "a table of nftables redirects what is sent to a\ncluster IP to usher's port."
	case "address":
		return "a route makes each cluster IP an address of this node,\nand usher listens on it."
	case "none":
		return "nothing is installed, and usher listens on loopback addresses.\n(As root the Services would have their cluster IPs.)"
	}
	return ""
}
