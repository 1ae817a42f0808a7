package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/proxy/admin/api"
)

const demoFaults = `  refuse     connections are refused, as by a Pod whose process has ended
  blackhole  nothing comes back, as from a node that has lost its power
  slow       answers come after 2 s
  reset      connections are accepted and reset (TCP only)`

func newDemoBreak() *cobra.Command {
	var asks askFlags
	cmd := &cobra.Command{
		Use:   "break ENDPOINT HOW",
		Short: "Break a server of the demo that runs",
		Long: `Breaks one of the servers of the 'usher demo' that runs. ENDPOINT is the Pod's
name or the address, as 'usher demo endpoints' lists them. HOW is

` + demoFaults + `

A server keeps its address, so usher finds out as it would in a cluster: by
trying.`,
		Example: `  usher demo break web-2 refuse
  usher demo break 127.0.0.1:38281 blackhole`,
		Args: exactArgs("ENDPOINT", "HOW"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return asks.completeDemoEndpoints(cmd), cobra.ShellCompDirectiveNoFileComp
			case 1:
				return []string{api.DemoRefuse, api.DemoBlackhole, api.DemoSlow, api.DemoReset}, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := asks.client()
			if err != nil {
				return err
			}
			e, err := c.Break(cmd.Context(), api.DemoBreak{Endpoint: args[0], How: args[1]})
			if err != nil {
				return asks.hint(err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s (%s) now %s.\n", e.Pod, e.Endpoint, e.Does)
			return nil
		},
	}
	asks.register(cmd.Flags())
	return cmd
}

func newDemoMend() *cobra.Command {
	var asks askFlags
	var all bool
	cmd := &cobra.Command{
		Use:   "mend ENDPOINT | --all",
		Short: "Mend a server of the demo that runs",
		Long: `Mends one of the servers of the 'usher demo' that runs, or all, also those that
were broken from the beginning. usher notices by itself: it probes an endpoint
that is in quarantine, every five seconds at least.`,
		Example: `  usher demo mend web-2
  usher demo mend --all`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 || (len(args) == 1) == all {
				return usagef("mend takes one ENDPOINT, or --all")
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return asks.completeDemoEndpoints(cmd), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := asks.client()
			if err != nil {
				return err
			}
			what := api.DemoMend{All: all}
			if !all {
				what.Endpoint = args[0]
			}
			list, err := c.Mend(cmd.Context(), what)
			if err != nil {
				return asks.hint(err)
			}
			for _, e := range list.Items {
				fmt.Fprintf(cmd.OutOrStdout(), "%s (%s) now %s.\n", e.Pod, e.Endpoint, e.Does)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "mend all of them")
	asks.register(cmd.Flags())
	return cmd
}

func newDemoEndpoints() *cobra.Command {
	var asks askFlags
	cmd := &cobra.Command{
		Use:   "endpoints",
		Short: "List the servers of the demo that runs, and what each does",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := asks.client()
			if err != nil {
				return err
			}
			list, err := c.DemoEndpoints(cmd.Context())
			if err != nil {
				return asks.hint(err)
			}
			printDemoEndpoints(cmd.OutOrStdout(), "", list.Items)
			return nil
		},
	}
	asks.register(cmd.Flags())
	return cmd
}

func printDemoEndpoints(out io.Writer, indent string, list []api.DemoEndpoint) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, e := range list {
		fmt.Fprintf(w, "%s%s\t%s/%s\t%s\n", indent, e.Pod, e.Endpoint, e.Protocol, e.Does)
	}
	w.Flush()
}
