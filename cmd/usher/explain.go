package main

import (
	"cmp"
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/usher/cli"
	"github.com/usherproxy/usher/cmd/usher/fleet"
	"github.com/usherproxy/usher/cmd/usher/show"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func newExplain() *cobra.Command {
	var asks askFlags
	var namespace namespaceFlag
	var q client.ExplainQuery
	var output string
	cmd := &cobra.Command{
		Use:   "explain SERVICE[:PORT]",
		Short: "Tell which endpoint a client would get, and why",
		Long: `Asks the usher that runs here what it would do if a client connected to SERVICE
now: which endpoints would be tried, in which order, why each, and which would not
be tried. It changes nothing: no endpoint's turn is used up, no affinity touched.
What really happens may differ, since other clients take turns too. With --cluster
it asks the ushers of all nodes, since each decides for itself; those that say
the same are told together.

PORT is the service port's name or number, as --port is. Without --client it is a client that usher does not know. For a client outside the
node, say with --vip which of the Service's addresses it connects to.`,
		Example: `  usher explain web
  usher explain shop/cart --client 10.244.1.7
  usher explain dns:dns-tcp
  usher explain web --client 198.51.100.9 --vip 203.0.113.5
  usher explain web --cluster --node worker-2`,
		Args:              takes(1, 1, "SERVICE[:PORT]"),
		ValidArgsFunction: completeOne(func(cmd *cobra.Command) []string { return asks.completeServices(cmd, namespace.namespace, nil) }),
		RunE: func(cmd *cobra.Command, args []string) error {
			service, port, named := strings.Cut(args[0], ":")
			if named && cmp.Or(q.Port, port) != port {
				return usagef("explain: %s names another port than --port=%s", args[0], q.Port)
			}
			q.Service, q.Port = namespace.serviceName(service), cmp.Or(q.Port, port)
			return asks.askAll(cmd, func(ushers []fleet.Usher) error {
				answers, err := fleet.Answered(fleet.Ask(cmd.Context(), ushers, func(ctx context.Context, u fleet.Usher) (api.Explanation, error) {
					return u.Explain(ctx, q)
				}))
				if len(answers) == 0 {
					if unknown := oneKnows(cmd.Context(), ushers, q.Service, ""); unknown != nil {
						return unknown
					}
					return err
				}
				return cmp.Or(printExplanations(cmd.OutOrStdout(), output, asks.cluster, answers), err)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&q.Client, "client", "", "the client's `address`")
	flags.StringVar(&q.Port, "port", "", "the service port's `name` or number; needed if there are several")
	flags.StringVar(&q.VIP, "vip", "", "the `address` (or address:port) that the client connects to; the cluster IP without it")
	cli.Choice(flags, &output, "output", "o", "`format`: json or yaml; sentences without it", "json", "yaml")
	namespace.register(flags)
	asks.registerCluster(cmd, &namespace)
	return cmd
}

// printExplanations prints what ushers have explained. Those of a cluster that say the same are told together.
func printExplanations(out io.Writer, output string, cluster bool, answers []fleet.Answer[api.Explanation]) error {
	if !cluster && output != "" {
		return printObject(out, output, answers[0].Value)
	}
	var items []fleet.Told[api.Explanation]
	nodes := map[string][]string{}
	var texts []string
	for _, a := range answers {
		items = append(items, fleet.Told[api.Explanation]{Node: a.From.Node, Item: a.Value})
		text := strings.Join(show.Explanation(a.Value), "\n")
		if nodes[text] == nil {
			texts = append(texts, text)
		}
		nodes[text] = append(nodes[text], show.Clean(a.From.Node))
	}
	if output != "" {
		return printObject(out, output, map[string]any{"total": len(items), "items": items})
	}
	for i, text := range texts {
		if i > 0 {
			printLines(out, []string{""})
		}
		if cluster {
			printLines(out, []string{show.Title.Text("On " + strings.Join(nodes[text], ", ") + ":")})
		}
		printLines(out, []string{text})
	}
	return nil
}
