package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/serve"
	"github.com/usherproxy/usher/cmd/internal/view"
	"github.com/usherproxy/usher/cmd/usher/daemon"
	"github.com/usherproxy/usher/cmd/usher/demo"
	"github.com/usherproxy/usher/config/manifest"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func newDemo() *cobra.Command {
	d := demoCommand{Flags: serve.New()}
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
servers do, and 'usher trace', 'usher explain', 'usher get' and 'kubectl-usher top --local'
show what comes of it.`,
		Example: `  usher demo                            # and then, in another terminal:
  usher demo break web-2 blackhole
  usher demo endpoints
  usher demo mend --all
  usher demo ask web --count=3          # as a client, or with curl
  usher demo play docs/course/2-retry.yaml

  usher demo --ask-every=1s             # its own clients ask every Service
  usher demo --once                     # ask, tell, end`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("demo has no command %q%s", args[0], cli.DidYouMean(args[0], cli.Names(cmd)))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&d.once, "once", false, "make the requests too, print the outcome and end; the exit code is 0 only if every request came out as it should")
	flags.DurationVar(&d.askEvery, "ask-every", 0, "how often each Service is asked by a client in this process; 0 means never")
	flags.StringVar(&d.AdminAddress, "admin-address", cli.DefaultAdminAddress, "`host:port` for the API and the pages; if the default is taken, another port is used; empty means none")
	cli.Group(flags, "Demo")
	d.RegisterProxy(flags)
	cli.SetDefault(flags, "quarantine-max", "5s") // who has mended an endpoint wants to see it
	d.Logs.Register(flags, "text")
	cmd.AddCommand(newDemoBreak(), newDemoMend(), newDemoEndpoints(), newDemoAsk(), newDemoPlay())
	return cmd
}

type demoCommand struct {
	serve.Flags
	once     bool
	askEvery time.Duration
}

func (d *demoCommand) run(cmd *cobra.Command) error {
	if err := d.complete(cmd); err != nil {
		return err
	}
	shown, err := demo.Start()
	if err != nil {
		return err
	}
	defer shown.Close()
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	cmd.SetContext(ctx)
	out := cmd.OutOrStdout()
	d.Manifests = []string{cmp.Or(shown.Dir, manifest.Stdin)}
	d.Input = shown.Manifests
	d.Demo = &daemon.Demo{Handler: shown.Handler}
	result := make(chan error, 1)
	d.OnReady = func(now daemon.Ready) {
		shown.Print(out, now.Proxy)
		if d.once {
			go func() {
				result <- demo.AskAll(ctx, out, now.Proxy)
				cancel()
			}()
			return
		}
		printHowToGoOn(out, now.AdminAddress, shown.Dir != "")
		if d.askEvery > 0 {
			go demo.KeepAsking(ctx, now.Proxy, d.askEvery)
		}
	}
	if !d.once {
		d.OnTrace = serve.PrintTrace(out)
	}
	usher, err := d.NewDaemon(cmd)
	if err != nil {
		return err
	}
	if err := serve.Run(cmd, usher, os.Interrupt); err != nil || !d.once {
		return err
	}
	select {
	case err := <-result:
		return err
	default:
		return errors.New("stopped before all requests were made")
	}
}

// complete checks the flags, and chooses another port for the API if nobody asked for
// this one.
func (d *demoCommand) complete(cmd *cobra.Command) error {
	if d.askEvery < 0 {
		return cli.Usagef("--ask-every: %s is less than 0", d.askEvery)
	}
	if err := d.Complete(cmd); err != nil {
		return err
	}
	if cmd.Flags().Changed("admin-address") {
		d.HardFail = true
		return nil
	}
	l, err := net.Listen("tcp", d.AdminAddress)
	if err != nil {
		d.AdminAddress = "127.0.0.1:0"
		return nil
	}
	return l.Close()
}

// printHowToGoOn tells what to type next. api is where usher's API is served, ""
// for nowhere; manifests is whether there are some to edit.
func printHowToGoOn(out io.Writer, api string, manifests bool) {
	if api == "" {
		fmt.Fprintf(out, "Ask a Service from another terminal, and watch here what happens to each\nconnection. Ctrl-C ends the demo and removes all that it installed.\n\n")
		return
	}
	flag := ""
	if api != cli.DefaultAdminAddress {
		flag = " --admin-address=" + api
	}
	fmt.Fprintf(out, "Open http://%s/ in a browser, or type in another terminal\n\n", api)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, line := range [][2]string{
		{"kubectl-usher top --local", "what is going on, full screen"},
		{"usher get services -A", "how the Services fare"},
		{"usher explain refusing", "which endpoint would be tried, and why"},
		{"usher demo break web-2 blackhole", "break an endpoint; --help tells in which ways"},
		{"usher demo mend --all", "mend them all"},
	} {
		fmt.Fprintf(w, "  %s%s\t%s\n", line[0], flag, line[1])
	}
	w.Flush()
	edit := ""
	if manifests {
		edit = " Edit a manifest and see what\nchanges."
	}
	fmt.Fprintf(out, "\nand watch here what happens to each connection.%s Ctrl-C ends the demo and removes all that it installed.\n\n", edit)
}

func newDemoBreak() *cobra.Command {
	var asks view.Asks
	cmd := &cobra.Command{
		Use:   "break ENDPOINT HOW",
		Short: "Break a server of the demo that runs",
		Long: `Breaks one of the servers of the 'usher demo' that runs. ENDPOINT is the Pod's
name or the address, as 'usher demo endpoints' lists them. HOW is

` + demo.FaultHelp() + `
A server keeps its address, so usher finds out as it would in a cluster: by
trying.`,
		Example: `  usher demo break web-2 refuse
  usher demo break web-2 flaky=20%
  usher demo break 127.0.0.1:38281 blackhole`,
		Args: cli.Takes(2, 2, "ENDPOINT and HOW"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return asks.CompleteDemoEndpoints(cmd), cobra.ShellCompDirectiveNoFileComp
			case 1:
				return demo.Faults(corev1.ProtocolTCP), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return asks.Ask(func(c *client.Client) error {
				e, err := c.Break(cmd.Context(), api.DemoBreak{Endpoint: args[0], How: args[1]})
				if err == nil {
					printNow(cmd.OutOrStdout(), e)
				}
				return err
			})
		},
	}
	asks.Register(cmd.Flags())
	return cmd
}

func printNow(out io.Writer, e api.DemoEndpoint) {
	fmt.Fprintf(out, "%s (%s) now %s.\n", e.Pod, e.Endpoint, e.Does)
}

func newDemoMend() *cobra.Command {
	var asks view.Asks
	var all bool
	cmd := &cobra.Command{
		Use:   "mend ENDPOINT | --all",
		Short: "Mend a server of the demo that runs",
		Long: `Mends one of the servers of the 'usher demo' that runs, or all, also those that
were broken from the beginning. usher notices by itself: it probes an endpoint
that is in quarantine, every five seconds at least.`,
		Example: `  usher demo mend web-2
  usher demo mend --all`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 || (len(args) == 1) == all {
				return cli.Usagef("mend takes one ENDPOINT, or --all")
			}
			return nil
		},
		ValidArgsFunction: view.CompleteOne(asks.CompleteDemoEndpoints),
		RunE: func(cmd *cobra.Command, args []string) error {
			what := api.DemoMend{All: all}
			if !all {
				what.Endpoint = args[0]
			}
			return asks.Ask(func(c *client.Client) error {
				list, err := c.Mend(cmd.Context(), what)
				for _, e := range list.Items {
					printNow(cmd.OutOrStdout(), e)
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "mend all of them")
	asks.Register(cmd.Flags())
	return cmd
}

func newDemoEndpoints() *cobra.Command {
	var asks view.Asks
	cmd := &cobra.Command{
		Use:   "endpoints",
		Short: "List the servers of the demo that runs, and what each does",
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return asks.Ask(func(c *client.Client) error {
				list, err := c.DemoEndpoints(cmd.Context())
				demo.PrintEndpoints(cmd.OutOrStdout(), "", list.Items)
				return err
			})
		},
	}
	asks.Register(cmd.Flags())
	return cmd
}

func newDemoAsk() *cobra.Command {
	var asks view.Asks
	var q demo.Questions
	cmd := &cobra.Command{
		Use:   "ask SERVICE | ENDPOINT",
		Short: "Be a client of the demo that runs",
		Long: `Asks a Service of the 'usher demo' that runs, as curl or nc would: through usher,
at the cluster IP, or, without root, where usher listens for it. One of its servers
is asked directly, without usher. Each request has a connection of its own.
The exit code is 0 if all were answered.`,
		Example: `  usher demo ask web --count=3
  usher demo ask blackhole-2 --timeout=3s    # what it is like without usher
  usher demo ask web --half-close`,
		Args:              cli.Takes(1, 1, "a SERVICE or an ENDPOINT"),
		ValidArgsFunction: view.CompleteOne(asks.CompleteDemoEndpoints),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Of = args[0]
			switch {
			case q.Count < 1 || q.Count > 1000:
				return cli.Usagef("--count: %d is not from 1 to 1000", q.Count)
			case q.Patience <= 0 || q.Patience > demo.RequestPatience:
				return cli.Usagef("--timeout: %s is not above 0s, up to %s", q.Patience, demo.RequestPatience)
			}
			return asks.Ask(func(c *client.Client) error {
				unanswered, err := demo.Ask(cmd.Context(), c, cmd.OutOrStdout(), q)
				if err == nil && unanswered > 0 {
					return cli.ErrSaid
				}
				return err
			})
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&q.Count, "count", 1, "how many requests are made, one after the other")
	flags.BoolVar(&q.HalfClose, "half-close", false, "end the client's own direction when the request is sent, and wait for the answer (TCP only)")
	flags.DurationVar(&q.Patience, "timeout", demo.RequestPatience, "how long the client waits for each answer")
	asks.Register(flags)
	return cmd
}

func newDemoPlay() *cobra.Command {
	var asks view.Asks
	cmd := &cobra.Command{
		Use:   "play FILE",
		Short: "Play a timetable of load and faults with the demo that runs",
		Long: `Plays a scenario with the 'usher demo' that runs: asks its Services, breaks and
mends its servers at the times that the file says, tells what is going on, and
checks what should be seen. The exit code is 0 if all was as expected. The load
comes from this process and ends with it; what is broken stays so until it is
mended. docs/course/README.md explains the file:

  title: One of three crashes
  steps:
  - at: 0s
    load: web 50/s
  - at: 2s
    say: web-2 resets some connections from now on.
    break: web-2 reset=30%
  - at: 2s
    expect: web failed >= 3
    by: 6s`,
		Example: `  usher demo play docs/course/2-retry.yaml`,
		Args:    cli.Takes(1, 1, "a FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			scenario, err := demo.ReadScenario(args[0])
			if err != nil {
				return err
			}
			return asks.Ask(func(c *client.Client) error {
				unmet, err := scenario.Play(cmd.Context(), c, cmd.OutOrStdout())
				if err == nil && unmet > 0 {
					return cli.ErrSaid
				}
				return err
			})
		},
	}
	asks.Register(cmd.Flags())
	return cmd
}
