package main

import (
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/usherproxy/usher/cmd/usher/top"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func newTop() *cobra.Command {
	asks := askFlags{one: true}
	var o top.Options
	var namespace namespaceFlag
	cmd := &cobra.Command{
		Use:   "top [SERVICE]",
		Short: "Watch what goes on, full screen",
		Long: `Shows the Services of the usher that runs here, live: how they fare, how many
connections begin, are retried and fail in a second. P99 is how long clients waited
lately for the endpoint's first byte, all but one in a hundred. Enter shows a Service's
connections, also those that have ended and are still in the trace, and enter on one
of these all attempts that were made for it. With SERVICE it begins with that one's
connections. ? lists the keys, q quits.

With --cluster --node it is the usher of a node of kubectl's cluster.

It needs a terminal, of any size and with or without colours (NO_COLOR). If usher
does not answer for a while, what was last known stays.`,
		Example: `  usher top
  usher top web
  usher top -n shop --interval 250ms`,
		Args:              takes(0, 1, "one SERVICE, or none"),
		ValidArgsFunction: completeOne(func(cmd *cobra.Command) []string { return asks.completeServices(cmd, namespace.namespace, nil) }),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Interval < minTopInterval {
				return usagef("--interval: %s is less than %s", o.Interval, minTopInterval)
			}
			if !term.IsTerminal(int(os.Stdin.Fd())) || !term.IsTerminal(int(os.Stdout.Fd())) {
				return errors.New("top needs a terminal; 'usher get services' prints much of the same, once")
			}
			if cmd.Flags().Changed("namespace") {
				o.Namespace = namespace.namespace
			}
			if len(args) == 1 {
				o.Service = namespace.serviceName(args[0])
			}
			o.Input, o.Output = os.Stdin, os.Stdout
			return asks.askOne(cmd, func(c *client.Client) error {
				if o.Service != "" {
					if err := mustKnow(cmd.Context(), c, o.Service, ""); err != nil {
						return err
					}
				}
				return top.Run(cmd.Context(), c, o)
			})
		},
	}
	cmd.Flags().DurationVar(&o.Interval, "interval", time.Second, "how often usher is asked")
	cmd.Flags().StringVarP(&namespace.namespace, "namespace", "n", "default", "only the Services of this `namespace` (all, if it is not given); also that of SERVICE")
	asks.registerCluster(cmd, &namespace)
	return cmd
}

// minTopInterval keeps usher top from being what there is to see.
const minTopInterval = 100 * time.Millisecond
