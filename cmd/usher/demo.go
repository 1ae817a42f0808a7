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
		Long: `Starts small servers in this process, writes manifests that make them the endpoints of
Services, serves the Services through the best portal available on this machine, and
prints a line for each step of each connection. The Services are: a healthy one, one
with an endpoint that refuses connections, one with an endpoint that never answers, one
with session affinity, one for UDP, and one without endpoints. It also serves usher's
API, which the other commands query, and its pages.

As root, the Services have their cluster IPs on this node; without root, they are on
loopback addresses. Everything is removed on exit.

From another terminal, 'usher demo break' and 'usher demo repair' change the behavior of
the servers, and 'usher trace', 'usher explain', 'usher get' and 'kubectl-usher top
--local' show the effects.`,
		Example: `  usher demo                            # and then, in another terminal:
  usher demo break web-2 blackhole
  usher demo endpoints
  usher demo repair --all
  usher demo ask web --count=3          # as a client, or with curl
  usher demo play docs/course/2-retry.yaml

  usher demo --once                     # send requests, print the outcome, exit`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("demo: unknown command %q%s", args[0], cli.DidYouMean(args[0], cli.Names(cmd)))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&d.once, "once", false, "Make the requests, print the outcome and exit; the exit code is 0 only if every request had the expected outcome")
	flags.StringVar(&d.AdminAddress, "admin-address", cli.DefaultAdminAddress, "Listen address `host:port` of the API and the pages. If the default port is in use, a free port is selected. Empty = none")
	cli.Group(flags, "Demo")
	d.RegisterProxy(flags)
	cli.SetDefault(flags, "quarantine-max", "5s") // so that a repaired endpoint is back soon
	d.Logs.Register(flags, "text")
	cli.MainFlags(cmd, "once", "admin-address", "portal", "scheduler", "log-level")
	cmd.AddCommand(newDemoBreak(), newDemoRepair(), newDemoEndpoints(), newDemoAsk(), newDemoPlay())
	return cmd
}

type demoCommand struct {
	serve.Flags
	once bool
}

func (d *demoCommand) run(cmd *cobra.Command) error {
	if err := d.complete(cmd); err != nil {
		return err
	}
	for _, warning := range cli.Deprecations(cmd.Flags()) {
		d.Log.Warn(warning)
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
	d.Demo = shown.Handler
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
		return errors.New("stopped before all requests were sent")
	}
}

// complete checks the flags. It selects another port for the API if the default one is in use and the
// user has not set it.
func (d *demoCommand) complete(cmd *cobra.Command) error {
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

// printHowToGoOn prints commands to try next. api is the address of usher's API, ""
// for none; manifests reports whether there are manifests to edit.
func printHowToGoOn(out io.Writer, api string, manifests bool) {
	if api == "" {
		fmt.Fprintf(out, "Send requests to a Service from another terminal. This one shows each step of each\nconnection. Ctrl-C ends the demo and removes everything it installed.\n\n")
		return
	}
	flag := ""
	if api != cli.DefaultAdminAddress {
		flag = " --admin-address=" + api
	}
	fmt.Fprintf(out, "Open http://%s/ in a browser, or run in another terminal:\n\n", api)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, line := range [][2]string{
		{"kubectl-usher top --local", "live view, full screen"},
		{"usher get services -A", "state of the Services"},
		{"usher explain refusing", "which endpoint usher would try, and why"},
		{"usher demo break web-2 blackhole", "break an endpoint; --help lists the ways"},
		{"usher demo repair --all", "repair all endpoints"},
	} {
		fmt.Fprintf(w, "  %s%s\t%s\n", line[0], flag, line[1])
	}
	w.Flush()
	edit := "\n"
	if manifests {
		edit = " If you edit a manifest,\nusher applies the change. "
	}
	fmt.Fprintf(out, "\nThis terminal shows each step of each connection.%sCtrl-C ends the demo and removes everything it installed.\n\n", edit)
}

func newDemoBreak() *cobra.Command {
	var asks view.Asks
	cmd := &cobra.Command{
		Use:   "break ENDPOINT HOW",
		Short: "Break a server of the running demo",
		Long: `Breaks a server of the running 'usher demo'. ENDPOINT is a Pod name or an address, as
listed by 'usher demo endpoints'. HOW is one of:

` + demo.FaultHelp() + `
The server keeps its address, so usher detects the fault as in a cluster: by trying to
connect.`,
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

func newDemoRepair() *cobra.Command {
	var asks view.Asks
	var all bool
	cmd := &cobra.Command{
		Use:   "repair ENDPOINT | --all",
		Short: "Repair a server of the running demo",
		Long: `Repairs one server of the running 'usher demo', or all of them, including those that were
broken from the start. usher detects it: it probes a quarantined TCP endpoint at least
every 5 seconds; a UDP one gets a client's datagram when its quarantine is over.`,
		Example: `  usher demo repair web-2
  usher demo repair --all`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 || (len(args) == 1) == all {
				return cli.Usagef("repair takes one ENDPOINT or --all")
			}
			return nil
		},
		ValidArgsFunction: view.CompleteOne(asks.CompleteDemoEndpoints),
		RunE: func(cmd *cobra.Command, args []string) error {
			what := api.DemoRepair{All: all}
			if !all {
				what.Endpoint = args[0]
			}
			return asks.Ask(func(c *client.Client) error {
				list, err := c.Repair(cmd.Context(), what)
				for _, e := range list.Items {
					printNow(cmd.OutOrStdout(), e)
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "Repair all servers")
	asks.Register(cmd.Flags())
	return cmd
}

func newDemoEndpoints() *cobra.Command {
	var asks view.Asks
	cmd := &cobra.Command{
		Use:   "endpoints",
		Short: "List the servers of the running demo and their behavior",
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
		Short: "Send requests to the running demo",
		Long: `Sends requests to a Service of the running 'usher demo', like curl or nc: through usher,
at the cluster IP or, without root, at usher's listening address. With an ENDPOINT, it
sends them directly to that server, bypassing usher. Each request uses a new connection.
The exit code is 0 if all requests were answered.`,
		Example: `  usher demo ask web --count=3
  usher demo ask blackhole-2 --timeout=3s    # without usher, for comparison
  usher demo ask web --half-close`,
		Args:              cli.Takes(1, 1, "a SERVICE or an ENDPOINT"),
		ValidArgsFunction: view.CompleteOne(asks.CompleteDemoEndpoints),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.Of = args[0]
			switch {
			case q.Count < 1 || q.Count > 1000:
				return cli.Usagef("--count: invalid value \"%d\": must be from 1 to 1000", q.Count)
			case q.Timeout <= 0 || q.Timeout > demo.RequestTimeout:
				return cli.Usagef("--timeout: invalid value \"%s\": must be above 0s and at most %s", q.Timeout, demo.RequestTimeout)
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
	flags.IntVar(&q.Count, "count", 1, "Number of requests, sent one after the other")
	flags.BoolVar(&q.HalfClose, "half-close", false, "Close the client's sending direction after the request, and wait for the answer (TCP only)")
	flags.DurationVar(&q.Timeout, "timeout", demo.RequestTimeout, "Timeout for each answer")
	asks.Register(flags)
	return cmd
}

func newDemoPlay() *cobra.Command {
	var asks view.Asks
	cmd := &cobra.Command{
		Use:   "play FILE",
		Short: "Play a scenario of load and faults with the running demo",
		Long: `Plays a scenario with the running 'usher demo': it sends requests to the Services,
breaks and repairs servers at the times in the file, prints its steps, and checks the
expected results. The exit code is 0 if all expectations were met. The load comes from
this process and ends with it; broken servers stay broken until they are repaired.
docs/course/README.md explains the file:

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
