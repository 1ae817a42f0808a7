package main

import (
	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/usher/show"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func newExplain() *cobra.Command {
	var asks askFlags
	var namespace namespaceFlag
	var q client.ExplainQuery
	var output string
	cmd := &cobra.Command{
		Use:   "explain SERVICE",
		Short: "Tell which endpoint a client would get, and why",
		Long: `Asks the usher that runs here what it would do if a client connected to SERVICE
now: which endpoints would be tried, in which order, why each, and which would not
be tried. It changes nothing: no endpoint's turn is used up, no affinity touched.
What really happens may differ, since other clients take turns too.

Without --client it is a client that usher does not know. For a client outside the
node, say with --vip which of the Service's addresses it connects to.`,
		Example: `  usher explain web
  usher explain shop/cart --client 10.244.1.7
  usher explain dns --port dns-tcp
  usher explain web --client 198.51.100.9 --vip 203.0.113.5`,
		Args:              takes(1, 1, "SERVICE"),
		ValidArgsFunction: completeOne(func(cmd *cobra.Command) []string { return asks.completeServices(cmd, namespace.namespace, nil) }),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output != "" && output != "json" && output != "yaml" {
				return usagef("--output: %q is neither json nor yaml", output)
			}
			q.Service = namespace.serviceName(args[0])
			return asks.ask(func(c *client.Client) error {
				e, err := c.Explain(cmd.Context(), q)
				switch {
				case err != nil:
					return err
				case output != "":
					return printObject(cmd.OutOrStdout(), output, e)
				}
				printLines(cmd.OutOrStdout(), show.Explanation(e))
				return nil
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&q.Client, "client", "", "the client's `address`")
	flags.StringVar(&q.Port, "port", "", "the service port's `name` or number; needed if there are several")
	flags.StringVar(&q.VIP, "vip", "", "the `address` (or address:port) that the client connects to; the cluster IP without it")
	flags.StringVarP(&output, "output", "o", "", "`format`: json or yaml; sentences without it")
	namespace.register(flags)
	asks.register(flags)
	return cmd
}
