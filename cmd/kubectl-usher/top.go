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
		Short: "Watch what goes on, full screen",
		Long: `Shows the Services of the usher of a node (--node), or of this machine (--local), live: how they fare, how many
connections begin, are retried and fail in a second. P99 is how long clients waited
lately for the endpoint's first byte, all but one in a hundred. Enter shows a Service's
connections, also those that have ended and are still in the trace, and enter on one
of these all attempts that were made for it. With SERVICE it begins with that one's
connections. ? lists the keys, q quits.

It needs a terminal, of any size and with or without colours (NO_COLOR). If usher
does not answer for a while, what was last known stays.`,
		Example: `  kubectl usher top --node worker-1
  kubectl usher top web --node worker-1 -n shop --interval 250ms
  kubectl usher top --local                # what 'usher demo' does`,
		Args:              cli.Takes(0, 1, "one SERVICE, or none"),
		ValidArgsFunction: view.CompleteOne(func(cmd *cobra.Command) []string { return asks.CompleteServices(cmd, namespace.Namespace, nil) }),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Interval < minTopInterval {
				return cli.Usagef("--interval: %s is less than %s", o.Interval, minTopInterval)
			}
			if !term.IsTerminal(int(os.Stdin.Fd())) || !term.IsTerminal(int(os.Stdout.Fd())) {
				return errors.New("top needs a terminal; 'kubectl usher get services' prints much of the same, once")
			}
			if cmd.Flags().Changed("namespace") {
				o.Namespace = namespace.Namespace
			}
			if len(args) == 1 {
				o.Service = namespace.ServiceName(args[0])
			}
			o.Input, o.Output = os.Stdin, os.Stdout
			return asks.AskOne(cmd, func(c *client.Client) error {
				if o.Service != "" {
					if err := view.MustKnow(cmd.Context(), c, o.Service, ""); err != nil {
						return err
					}
				}
				return top.Run(cmd.Context(), c, o)
			})
		},
	}
	cmd.Flags().DurationVar(&o.Interval, "interval", time.Second, "how often usher is asked")
	cmd.Flags().StringVarP(&namespace.Namespace, "namespace", "n", "default", "only the Services of this `namespace` (all, if it is not given); also that of SERVICE")
	asks.RegisterCluster(cmd, &namespace)
	return cmd
}

// minTopInterval keeps usher top from being what there is to see.
const minTopInterval = 100 * time.Millisecond
