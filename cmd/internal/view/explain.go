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
		Long: v.long(`Shows what usher would do if a client connected to SERVICE now: the endpoints it
would try, in which order and why, and the endpoints it would not try. It changes
nothing: it neither advances the rotation nor touches session affinity. Actual
connections may get other endpoints, because other clients connect in between.

PORT is the service port's name or number, like --port. Without --client, the client
is assumed to have no session affinity. For a client outside the node, set --vip to
the address that it connects to.`,
			`It queries the usher instances on all nodes, unless --local or --node is set, because
each instance decides on its own. Identical answers are merged.`),
		Example: `  usher explain web
  usher explain shop/cart --client 10.244.1.7
  usher explain dns:dns-tcp
  usher explain web --client 198.51.100.9 --vip 203.0.113.5`,
		Args:              cli.Takes(1, 1, "SERVICE[:PORT]"),
		ValidArgsFunction: CompleteOne(func(cmd *cobra.Command) []string { return asks.CompleteServices(cmd, namespace.Namespace, nil) }),
		RunE: func(cmd *cobra.Command, args []string) error {
			service, port, named := strings.Cut(args[0], ":")
			if named && cmp.Or(q.Port, port) != port {
				return cli.Usagef("explain: %s and --port=%s name different ports", args[0], q.Port)
			}
			q.Service, q.Port = namespace.ServiceName(service), cmp.Or(q.Port, port)
			return asks.AskAll(cmd, func(ushers []fleet.Usher) error {
				answers, err := fleet.Answered(fleet.Ask(cmd.Context(), ushers, func(ctx context.Context, u fleet.Usher) (api.Explanation, error) {
					return u.Explain(ctx, q)
				}))
				if len(answers) == 0 {
					if unknown := oneKnows(cmd.Context(), ushers, q.Service, HowToList(cmd)); unknown != nil {
						return unknown
					}
					return err
				}
				return cmp.Or(printExplanations(cmd.OutOrStdout(), output, asks.cluster(), answers), err)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&q.Client, "client", "", "Client `address`")
	flags.StringVar(&q.Port, "port", "", "Service port `name` or number; required if the Service has several")
	flags.StringVar(&q.VIP, "vip", "", "`address` or address:port that the client connects to. Empty = the cluster IP")
	cli.Choice(flags, &output, "output", "o", "Output `format`: json or yaml. Empty = text", "json", "yaml")
	namespace.Register(flags)
	asks.RegisterCluster(cmd, &namespace)
	return cmd
}

// printExplanations prints the explanations of usher instances. As text, it prints equal ones once, with their nodes.
func printExplanations(out io.Writer, output string, cluster bool, answers []fleet.Answer[api.Explanation]) error {
	if !cluster && output != "" {
		return cli.PrintObject(out, output, answers[0].Value)
	}
	var items []fleet.Reported[api.Explanation]
	nodes := map[string][]string{}
	var texts []string
	for _, a := range answers {
		items = append(items, fleet.Reported[api.Explanation]{Node: a.From.Node, Item: a.Value})
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
