package main

import (
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/view"
	"github.com/usherproxy/usher/cmd/kubectl-usher/top"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func newTop() *cobra.Command {
	asks := viewers.Asks().One()
	var o top.Options
	var namespace view.NamespaceFlag
	cmd := &cobra.Command{
		Use:   "top [SERVICE]",
		Short: "Watch Services and connections, full screen",
		Long: `Shows a live view of the Services on a node (--node) or on this machine (--local):
their state, and the connections per second that start, are retried and fail. P99 is
the p99 time to the endpoint's first byte in the last 5 to 10 minutes. Enter opens the connections
of a Service, including ended ones that are still in the trace; enter on a connection
shows all its attempts. With SERVICE, it starts with the connections of that Service.
? lists the keys, q quits.

It requires a terminal, of any size, with or without colors (NO_COLOR). While usher
does not respond, the last state stays on screen.`,
		Example: `  kubectl usher top --node worker-1
  kubectl usher top web --node worker-1 -n shop --interval 250ms
  kubectl usher top --local                # what 'usher demo' does`,
		Args:              cli.Takes(0, 1, "one SERVICE, or none"),
		ValidArgsFunction: view.CompleteOne(func(cmd *cobra.Command) []string { return asks.CompleteServices(cmd, namespace.Namespace, nil) }),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Interval < minTopInterval {
				return cli.Usagef("--interval: invalid value \"%s\": must be at least %s", o.Interval, minTopInterval)
			}
			if !term.IsTerminal(int(os.Stdin.Fd())) || !term.IsTerminal(int(os.Stdout.Fd())) {
				return errors.New("top requires a terminal; 'kubectl usher get services' prints similar data once")
			}
			if cmd.Flags().Changed("namespace") {
				o.Namespace = namespace.Namespace
			}
			if len(args) == 1 {
				o.Service = namespace.ServiceName(args[0])
			}
			o.Renew = asks.Renew
			return asks.AskOne(cmd, func(c *client.Client) error {
				c.Slow = nil // its message would appear within the screen
				if o.Service != "" {
					if err := view.MustKnow(cmd.Context(), c, o.Service, view.HowToList(cmd)); err != nil {
						return err
					}
				}
				return top.Run(cmd.Context(), c, o)
			})
		},
	}
	cmd.Flags().DurationVar(&o.Interval, "interval", time.Second, "Refresh interval")
	cmd.Flags().StringVarP(&namespace.Namespace, "namespace", "n", "default", "Show only the Services of this `namespace`. Not set = all namespaces; for SERVICE, that of the context, or default")
	cmd.Flag("namespace").DefValue = ""
	asks.RegisterCluster(cmd, &namespace)
	return cmd
}

// minTopInterval keeps usher top from causing most of the load that it shows.
const minTopInterval = 100 * time.Millisecond
