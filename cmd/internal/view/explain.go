package view

import (
	"cmp"
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/fleet"
	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func (v Viewers) newExplain() *cobra.Command {
	asks := v.Asks()
	var namespace NamespaceFlag
	var q client.ExplainQuery
	var output string
	cmd := &cobra.Command{
		Use:   "explain SERVICE[:PORT]",
		Short: "Show which endpoint a client would get, and why",
		Long: v.long(`Asks the usher that runs here what it would do if a client connected to SERVICE
now: which endpoints would be tried, in which order, why each, and which would not
be tried. It changes nothing: no endpoint's turn is used up, no affinity touched.
What really happens may differ, since other clients take turns too.

PORT is the service port's name or number, as --port is. Without --client it is a client that usher does not know. For a client outside the
node, say with --vip which of the Service's addresses it connects to.`,
			`It asks the ushers of all nodes, unless --local or --node says otherwise, since each
decides for itself; those that say the same are told together.`),
		Example: `  usher explain web
  usher explain shop/cart --client 10.244.1.7
  usher explain dns:dns-tcp
  usher explain web --client 198.51.100.9 --vip 203.0.113.5`,
		Args:              cli.Takes(1, 1, "SERVICE[:PORT]"),
		ValidArgsFunction: CompleteOne(func(cmd *cobra.Command) []string { return asks.CompleteServices(cmd, namespace.Namespace, nil) }),
		RunE: func(cmd *cobra.Command, args []string) error {
			service, port, named := strings.Cut(args[0], ":")
			if named && cmp.Or(q.Port, port) != port {
				return cli.Usagef("explain: %s names another port than --port=%s", args[0], q.Port)
			}
			q.Service, q.Port = namespace.ServiceName(service), cmp.Or(q.Port, port)
			return asks.AskAll(cmd, func(ushers []fleet.Usher) error {
				answers, err := fleet.Answered(fleet.Ask(cmd.Context(), ushers, func(ctx context.Context, u fleet.Usher) (api.Explanation, error) {
					return u.Explain(ctx, q)
				}))
				if len(answers) == 0 {
					if unknown := oneKnows(cmd.Context(), ushers, q.Service, ""); unknown != nil {
						return unknown
					}
					return err
				}
				return cmp.Or(printExplanations(cmd.OutOrStdout(), output, asks.cluster(), answers), err)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&q.Client, "client", "", "the client's `address`")
	flags.StringVar(&q.Port, "port", "", "the service port's `name` or number; needed if there are several")
	flags.StringVar(&q.VIP, "vip", "", "the `address` (or address:port) that the client connects to; the cluster IP without it")
	cli.Choice(flags, &output, "output", "o", "`format`: json or yaml; sentences without it", "json", "yaml")
	namespace.Register(flags)
	asks.RegisterCluster(cmd, &namespace)
	return cmd
}

// printExplanations prints what ushers have explained. Those of a cluster that say the same are told together.
func printExplanations(out io.Writer, output string, cluster bool, answers []fleet.Answer[api.Explanation]) error {
	if !cluster && output != "" {
		return cli.PrintObject(out, output, answers[0].Value)
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
		return cli.PrintObject(out, output, map[string]any{"total": len(items), "items": items})
	}
	for i, text := range texts {
		if i > 0 {
			cli.PrintLines(out, []string{""})
		}
		if cluster {
			cli.PrintLines(out, []string{show.Title.Text("On " + strings.Join(nodes[text], ", ") + ":")})
		}
		cli.PrintLines(out, []string{text})
	}
	return nil
}
