package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/serve"
	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/manifest"
)

func newCheck() *cobra.Command {
	var manifests manifestFlags
	var d diffCommand
	var diff bool
	cmd := &cobra.Command{
		Use:   "check FILE… | -",
		Short: "Validate manifests; with --diff, show what would change",
		Long: `Reads manifests like 'usher run' and reports problems with file, document, object, field
and allowed values. The exit code is 1 if there are errors or a folder contains no
manifest, and 0 if there are only warnings. The path - is standard input.

With --diff, it compares the manifests with the state of the usher instance on this
node, and shows what would change if it served them instead: the handling of traffic to
each VIP, the endpoints for each kind of client (internal: of cluster IPs; external:
from outside the cluster; node: on this node), and errors. If usher is not running,
everything is new. + marks additions, - removals, ~ changes; unchanged service ports are
only counted. For objects that are unreadable or invalid, usher keeps the previous
state, and so does the comparison. If nothing in a file can be read, there is no comparison.

It changes nothing and needs no privileges.`,
		Example: `  usher check examples/
  kubectl get services,endpointslices,nodes -A -o yaml | usher check --diff -
  usher check --diff web.yaml --node-name worker-1`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("check: at least one file or folder is required")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if diff {
				return d.run(cmd, &manifests, args)
			}
			for _, name := range d.flags {
				if cmd.Flags().Changed(name) {
					return cli.Usagef("check: --%s requires --diff", name)
				}
			}
			result, err := manifests.check(cmd.InOrStdin(), args)
			if err != nil {
				return err
			}
			return printReport(cmd, result)
		},
	}
	manifests.register(cmd.Flags())
	cmd.Flags().BoolVar(&diff, "diff", false, "Show what would change on this node")
	d.register(cmd.Flags(), &manifests.node)
	return cmd
}

// manifestFlags are the flags of commands that read manifests and serve nothing.
type manifestFlags struct {
	allocation    serve.Allocation
	loadBalancers []string
	proxyName     string
	node          config.Node
	policy        config.Policy // the node's
}

func (f *manifestFlags) register(flags *pflag.FlagSet) {
	f.allocation.Register(flags)
	flags.StringSliceVar(&f.loadBalancers, "load-balancer-cidr", nil, serve.LoadBalancersUsage)
	flags.StringVar(&f.proxyName, "service-proxy-name", "", serve.ProxyNameUsage+serve.Unlabeled)
}

// check reads manifests once; the path - is stdin.
func (f *manifestFlags) check(stdin io.Reader, paths []string) (*manifest.Result, error) {
	o := manifest.Options{Paths: paths, Input: stdin, Node: f.node}
	if err := f.allocation.Parse(&o); err != nil {
		return nil, err
	}
	o.ServiceProxyName, o.Policy = f.proxyName, f.policy
	var err error
	if o.LoadBalancers, err = serve.ParseLoadBalancers(f.loadBalancers); err != nil {
		return nil, err
	}
	return manifest.Check(o)
}

// printReport prints errors and warnings to standard error and a summary to
// standard output.
func printReport(cmd *cobra.Command, r *manifest.Result) error {
	for _, p := range r.Warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", p)
	}
	for _, p := range r.Errors {
		fmt.Fprintln(cmd.ErrOrStderr(), "error:", p)
	}
	ports := 0
	for _, s := range r.Services {
		ports += len(s.Ports)
	}
	unproxied := ""
	if r.Unproxied > 0 {
		unproxied = fmt.Sprintf(", %d not proxied (headless, ExternalName, or assigned to another proxy)", r.Unproxied)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s, %s with %s%s, %s, %s\n", show.Plural(r.Files, "file"), show.Plural(len(r.Services), "Service"),
		show.Plural(ports, "port"), unproxied, show.Plural(len(r.Errors), "error"), show.Plural(len(r.Warnings), "warning"))
	if len(r.Errors) > 0 {
		return cli.ErrSaid
	}
	if len(r.Services) == 0 {
		fmt.Fprintln(cmd.OutOrStdout(), "Found nothing to serve.")
	}
	return nil
}
