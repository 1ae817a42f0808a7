package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/cmd/internal/view"
	"github.com/usherproxy/usher/portal/modes"
	"github.com/usherproxy/usher/proxy/admin"
	"github.com/usherproxy/usher/proxy/admin/api"
)

func newPortals() *cobra.Command {
	var asks view.Asks
	output := "table"
	var logs cli.LogFlags
	cmd := &cobra.Command{
		Use:   "portals",
		Short: "List the portals that are installed on this node, beside what is wanted",
		Long: `Lists the rules and routes that usher, this or another process, has installed on
this node, in whichever portal mode, as the kernel has them. Changes nothing.

The usher that runs here is asked what it wants. The column STATE tells of each
rule whether it is as it should be: ok, missing from the kernel, differs (what is
installed is another one), or extra (nobody wants it). If no usher answers, what
is installed is listed without the column.

A second table tells of what is there for all Services together: chains, routing
rules and a route, so that endpoints see their clients' own addresses, and routes
of last resort on a node without a default route.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			print := printPortals
			if output == "json" {
				print = printPortalsJSON
			}
			log, err := logs.Logger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			c, err := asks.Client()
			if err != nil {
				return err
			}
			defer c.Close()
			portals, err := c.Portals(cmd.Context())
			if err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "What is wanted is not known, since %v\n", err)
				installed, err := modes.List(cmd.Context(), log)
				if err != nil {
					return fmt.Errorf("reading what is installed: %w", err)
				}
				for _, i := range installed {
					portals.Rules = append(portals.Rules, admin.NewPortalRule(i.Mode, i.Rule))
				}
			}
			return print(cmd.OutOrStdout(), portals)
		},
	}
	cli.Choice(cmd.Flags(), &output, "output", "o", "table or json", "table", "json")
	asks.Register(cmd.Flags())
	logs.Register(cmd.Flags(), "auto")
	return cmd
}

// printPortals prints a table, with the column STATE if an usher said what it
// wants.
func printPortals(out io.Writer, p api.Portals) error {
	known := p.Mode != ""
	if len(p.Rules) == 0 {
		text := "No portals are installed."
		if known {
			text = "No portals are installed, and none are wanted."
		}
		_, err := fmt.Fprintln(out, text)
		return err
	}
	columns := show.Portals
	if !known {
		columns = slices.DeleteFunc(slices.Clone(columns), func(c show.Column[api.PortalRule]) bool { return c.Title == "STATE" })
	}
	if err := show.Table(out, columns, show.WithInstalled(p.Rules), false, cli.TableWidth(out, false)); err != nil || len(p.Parts) == 0 {
		return err
	}
	fmt.Fprintln(out)
	return show.Table(out, show.PortalParts, p.Parts, false, cli.TableWidth(out, false))
}

// printPortalsJSON prints what GET /api/v1/portals answers, of which only the
// rules are known without an usher that runs.
func printPortalsJSON(out io.Writer, p api.Portals) error {
	if p.Rules == nil {
		p.Rules = []api.PortalRule{}
	}
	return cli.PrintObject(out, "json", p)
}
