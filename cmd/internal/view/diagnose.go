package view

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/diagnose"
	"github.com/usherproxy/usher/cmd/internal/fleet"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func (v Viewers) newDiagnose() *cobra.Command {
	asks := v.Asks()
	var namespace NamespaceFlag
	var o diagnose.Options
	var output, bundle, log string
	cmd := &cobra.Command{
		Use:   "diagnose [SERVICE]",
		Short: "Find problems and suggest next steps",
		Long: v.long(`Queries the usher instance on this node, checks the node for common problems, and
reports each finding with its evidence and a next step. It finds Services without
endpoints; endpoints that refuse or reset connections, do not respond or are
unstable; missing rules and routes; rules of other programs; rejected manifests;
limits that are nearly reached; and a client that is denied. Its only change is a
temporary TUN device, to test whether a host firewall drops packets. Without SERVICE it
checks all Services, the worst ones closely. It takes a few seconds.

Exit codes: 0 = no findings except notes, 1 = findings, 2 = invalid command line.

--bundle writes a file with diagnostic data for a maintainer, even if usher does not
respond. Text that looks like a token, password or key is omitted. In a Pod, where
files cannot be written, --bundle - writes the bundle to standard output and all
other output to standard error.`,
			`It queries the usher instances on all nodes, unless --local or --node is set, and
reports the nodes of each finding: a failing Pod fails on all nodes, a failing node
only on itself. Checks that must run on the node, such as routes and rules of other
programs, are skipped.`),
		Example: `  usher diagnose
  usher diagnose shop/cart --client 198.51.100.9
  usher diagnose web --dns 10.96.0.10:53
  usher diagnose --bundle usher.tgz
  kubectl -n kube-system exec POD -- usher diagnose --bundle - > usher.tgz`,
		Args:              cli.Takes(0, 1, "at most one SERVICE"),
		ValidArgsFunction: CompleteOne(func(cmd *cobra.Command) []string { return asks.CompleteServices(cmd, namespace.Namespace, nil) }),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Remote = asks.cluster() || !isHere(cmd.Context(), asks.Address)
			switch _, err := netip.ParseAddr(o.Client); {
			case o.Remote && (bundle != "" || log != "" || o.DNS != ""):
				return cli.Usagef("--bundle, --log and --dns work only on the node itself: run usher diagnose there, for example with kubectl exec")
			case o.Client != "" && err != nil:
				return cli.Usagef("--client: invalid value %q: must be an IP address", o.Client)
			case log != "" && bundle == "":
				return cli.Usagef("--log requires --bundle")
			case bundle == "-" && cli.IsTerminal(cmd.OutOrStdout()):
				return cli.Usagef("--bundle -: standard output is a terminal; redirect it to a file: > usher.tgz")
			}
			if _, _, err := net.SplitHostPort(o.DNS); o.DNS != "" && err != nil {
				return cli.Usagef("--dns: invalid value %q: must be HOST:PORT, such as 10.96.0.10:53", o.DNS)
			}
			domain := strings.ToLower(strings.TrimSuffix(o.Domain, "."))
			if wrong := validation.IsDNS1123Subdomain(domain); domain != "" && len(wrong) > 0 {
				return cli.Usagef("--dns-domain: invalid value %q: must be a domain, such as cluster.local", o.Domain)
			}
			if len(args) > 0 {
				o.Service = namespace.ServiceName(args[0])
			}
			if asks.cluster() {
				return asks.AskAll(cmd, func(ushers []fleet.Usher) error { return diagnoseCluster(cmd, ushers, o, output) })
			}
			if o.Remote {
				fmt.Fprintf(cmd.ErrOrStderr(), "usher: skipping the checks of the node itself: %s is not an address of this machine; to run them, run usher diagnose there\n", asks.Address)
			}
			return asks.Ask(func(c *client.Client) error {
				report, failed := diagnose.Run(cmd.Context(), c, o)
				if o.Service != "" && client.IsNotFound(failed) {
					return cmp.Or(MustKnow(cmd.Context(), c, o.Service, HowToList(cmd)), failed)
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
					fmt.Fprintf(cmd.ErrOrStderr(), "Wrote %s. It contains names and addresses of Services, Pods and clients: review it before you share it.\n", name)
				}
				if failed != nil {
					return failed
				}
				return printFindings(out, report, output)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Client, "client", "", "Also check whether the client with this `address` would be admitted")
	flags.StringVar(&o.DNS, "dns", "", "Also query the DNS server at `host:port` for the Services' names")
	flags.StringVar(&o.Domain, "dns-domain", "cluster.local", "Cluster `domain` for --dns")
	flags.StringVar(&bundle, "bundle", "", "Write a `file` with diagnostic data (.tgz, readable only by you) for a maintainer. - = standard output")
	flags.StringVar(&log, "log", "", "Log `file` of usher whose end goes into the bundle. Empty = the journal")
	cli.Choice(flags, &output, "output", "o", "Output `format`: json or yaml. Empty = text", "json", "yaml")
	namespace.Register(flags)
	asks.RegisterCluster(cmd, &namespace)
	return cmd
}

// isHere reports whether the host of address, "host:port", is this machine. It also returns true if the host cannot be
// resolved.
func isHere(ctx context.Context, address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return true
	}
	own, _ := kernel.LocalAddrs() // none on error
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool {
		a = a.Unmap().WithZone("")
		return a.IsLoopback() || a.IsUnspecified() || slices.Contains(own, a)
	})
}

// diagnoseCluster checks the usher instances of a cluster, and prints their merged findings.
func diagnoseCluster(cmd *cobra.Command, ushers []fleet.Usher, o diagnose.Options, output string) error {
	answers, err := fleet.Answered(fleet.Ask(cmd.Context(), ushers, func(ctx context.Context, u fleet.Usher) (diagnose.Result, error) {
		return diagnose.Run(ctx, u.Client, o)
	}))
	if len(answers) == 0 {
		if o.Service != "" {
			return cmp.Or(oneKnows(cmd.Context(), ushers, o.Service, HowToList(cmd)), err)
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

// printFindings prints the findings. It returns cli.ErrSaid if one is more than a note.
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
