package view

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/diagnose"
	"github.com/usherproxy/usher/cmd/internal/fleet"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func (v Viewers) newDiagnose() *cobra.Command {
	asks := v.Asks()
	var namespace NamespaceFlag
	var o diagnose.Options
	var output, bundle, log string
	cmd := &cobra.Command{
		Use:   "diagnose [SERVICE]",
		Short: "Find what is wrong, and say what to do",
		Long: v.long(`Asks the usher that runs here, looks at this node for what is usually wrong, and
says of each thing that it finds how it is known, and what to do: Services without
endpoints, endpoints that refuse, are silent, break connections or come and go,
rules and routes that are missing, somebody else's rules, rejected manifests,
limits that are near, a client that is not let in. It changes nothing. Without
SERVICE it looks at all, closely at those that do worst. It takes some seconds.

The exit code is 0 if nothing is found but notes, 1 if something is, and 2 if the
command line was not understood.

--bundle writes a file with what a maintainer would ask for, also if no usher
answers. What looks like a token, password or key is left out of it. In a Pod, where
no file can be written, --bundle - writes it to standard output, and the rest to
standard error.`,
			`It asks the ushers of all nodes, unless --local or --node says otherwise, and says on
which nodes what is wrong: a Pod is wrong on all, a node on its own. What it takes the
node itself to see, such as routes and rules of others, is not looked at then.`),
		Example: `  usher diagnose
  usher diagnose shop/cart --client 198.51.100.9
  usher diagnose web --dns 10.96.0.10:53
  usher diagnose --bundle usher.tgz
  kubectl -n kube-system exec POD -- usher diagnose --bundle - > usher.tgz`,
		Args:              cli.Takes(0, 1, "at most one SERVICE"),
		ValidArgsFunction: CompleteOne(func(cmd *cobra.Command) []string { return asks.CompleteServices(cmd, namespace.Namespace, nil) }),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Remote = asks.cluster()
			switch _, err := netip.ParseAddr(o.Client); {
			case o.Remote && (bundle != "" || log != "" || o.DNS != ""):
				return cli.Usagef("--bundle, --log and --dns are of the node itself: run usher diagnose there, as by kubectl exec")
			case o.Client != "" && err != nil:
				return cli.Usagef("--client: %q is not an address", o.Client)
			case log != "" && bundle == "":
				return cli.Usagef("--log is for --bundle")
			case bundle == "-" && cli.IsTerminal(cmd.OutOrStdout()):
				return cli.Usagef("--bundle -: standard output is a terminal; send it to a file: > usher.tgz")
			}
			if _, _, err := net.SplitHostPort(o.DNS); o.DNS != "" && err != nil {
				return cli.Usagef("--dns: %q is not host:port, such as 10.96.0.10:53", o.DNS)
			}
			if len(args) > 0 {
				o.Service = namespace.ServiceName(args[0])
			}
			if o.Remote {
				return asks.AskAll(cmd, func(ushers []fleet.Usher) error { return diagnoseCluster(cmd, ushers, o, output) })
			}
			return asks.Ask(func(c *client.Client) error {
				report, failed := diagnose.Run(cmd.Context(), c, o)
				if o.Service != "" && client.IsNotFound(failed) {
					return cmp.Or(MustKnow(cmd.Context(), c, o.Service, ""), failed)
				}
				if failed != nil && (bundle == "" || client.IsNotFound(failed)) {
					return failed
				}
				out := cmd.OutOrStdout()
				if bundle != "" {
					var err error
					b := diagnose.Bundle{Client: c, Log: log, Version: cli.VersionLine(), Found: report, Failed: failed}
					name := bundle
					if bundle == "-" {
						name, err = "the bundle", b.Write(cmd.Context(), out)
						out = cmd.ErrOrStderr()
					} else {
						err = b.Create(cmd.Context(), bundle)
					}
					if err != nil {
						return errors.Join(failed, fmt.Errorf("--bundle: %w", err))
					}
					fmt.Fprintf(cmd.ErrOrStderr(), "Wrote %s. It holds names and addresses of Services, Pods and clients: look at it before you pass it on.\n", name)
				}
				if failed != nil {
					return failed
				}
				return printFindings(out, report, output)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Client, "client", "", "also say whether the client with this `address` would be let in")
	flags.StringVar(&o.DNS, "dns", "", "also ask the DNS server at `host:port` for the Services' names")
	flags.StringVar(&o.Domain, "dns-domain", "cluster.local", "the cluster's `domain`, for --dns")
	flags.StringVar(&bundle, "bundle", "", "write a `file` (.tgz, readable by you only) for a maintainer; - is standard output")
	flags.StringVar(&log, "log", "", "the `file` with usher's log, whose end goes into the bundle; what journald has without it")
	cli.Choice(flags, &output, "output", "o", "`format`: json or yaml; text without it", "json", "yaml")
	namespace.Register(flags)
	asks.RegisterCluster(cmd, &namespace)
	return cmd
}

// diagnoseCluster looks at what all ushers of a cluster tell.
func diagnoseCluster(cmd *cobra.Command, ushers []fleet.Usher, o diagnose.Options, output string) error {
	answers, err := fleet.Answered(fleet.Ask(cmd.Context(), ushers, func(ctx context.Context, u fleet.Usher) (diagnose.Result, error) {
		return diagnose.Run(ctx, u.Client, o)
	}))
	if len(answers) == 0 {
		if o.Service != "" {
			return cmp.Or(oneKnows(cmd.Context(), ushers, o.Service, ""), err)
		}
		return err
	}
	var all []diagnose.OnNode
	for _, a := range answers {
		all = append(all, diagnose.OnNode{Node: a.From.Node, Result: a.Value})
	}
	wrong := printFindings(cmd.OutOrStdout(), diagnose.Together(all), output)
	return cmp.Or(err, wrong)
}

// printFindings prints what was found. Its error is that something is wrong.
func printFindings(out io.Writer, report diagnose.Result, output string) error {
	if output == "" {
		cli.PrintLines(out, report.Lines(min(80, cli.TerminalWidth(out))))
	} else if err := cli.PrintObject(out, output, report); err != nil {
		return err
	}
	if report.Wrong() {
		return cli.ErrSaid
	}
	return nil
}
