package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/usher/show"
	"github.com/usherproxy/usher/config/manifest"
)

func newCheck() *cobra.Command {
	var serviceCIDRs, loadBalancers []string
	cmd := &cobra.Command{
		Use:   "check FILE…",
		Short: "Say what is wrong with manifests",
		Long: `Reads manifests as 'usher run' does and says what is wrong with them: file,
document, object, field, and what is allowed. The exit code is 1 if anything is
wrong. Warnings alone leave it at 0.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("check: at least one file or folder is needed")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			cidrs, err := parseServiceCIDRs(serviceCIDRs)
			if err != nil {
				return err
			}
			balancers, err := parseLoadBalancers(loadBalancers)
			if err != nil {
				return err
			}
			result, err := manifest.Check(manifest.Options{Paths: args, ServiceCIDRs: cidrs, LoadBalancers: balancers})
			if err != nil {
				return err
			}
			return printReport(cmd, result)
		},
	}
	cmd.Flags().StringSliceVar(&serviceCIDRs, "service-cidr", defaultServiceCIDRs, serviceCIDRUsage)
	cmd.Flags().StringSliceVar(&loadBalancers, "load-balancer-cidr", nil, loadBalancersUsage)
	return cmd
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
	fmt.Fprintf(cmd.OutOrStdout(), "%s, %s with %s, %s, %s\n", show.Plural(r.Files, "file"), show.Plural(len(r.Services), "Service"),
		show.Plural(ports, "port"), show.Plural(len(r.Errors), "error"), show.Plural(len(r.Warnings), "warning"))
	if len(r.Errors) > 0 {
		return errSaid
	}
	return nil
}
