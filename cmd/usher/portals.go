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
		Short: "List installed portal rules on this node, compared with the wanted ones",
		Long: `Lists the rules and routes that any usher process has installed on this node, in any
portal mode, as reported by the kernel. It changes nothing.

The column STATE compares each rule with the rules that the usher instance on this node
wants: ok, missing (from the kernel), differs (another rule is installed), or extra (not
wanted). If usher is not running, the column is omitted.

A second table lists what all Services share: chains, routing rules and a route that
preserve client addresses, and fallback routes on a node without a default route.`,
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
				fmt.Fprintf(cmd.ErrOrStderr(), "Cannot determine which rules are wanted: %v\n", err)
				installed, err := modes.List(cmd.Context(), log)
				if err != nil {
					return fmt.Errorf("list installed rules: %w", err)
				}
				for _, i := range installed {
					portals.Rules = append(portals.Rules, admin.NewPortalRule(i.Mode, i.Rule))
				}
			}
			return print(cmd.OutOrStdout(), portals)
		},
	}
	cli.Choice(cmd.Flags(), &output, "output", "o", "Output format: table or json", "table", "json")
	asks.Register(cmd.Flags())
	logs.Register(cmd.Flags(), "auto")
	return cmd
}

// printPortals prints a table. It has the column STATE if a running usher instance returned
// the rules that it wants.
func printPortals(out io.Writer, p api.Portals) error {
	known := p.Mode != ""
	if len(p.Rules) == 0 {
		text := "No portal rules are installed."
		if known {
			text = "No portal rules are installed, and none are wanted."
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

// printPortalsJSON prints the response of GET /api/v1/portals. Without a running usher
// instance it contains only the rules.
func printPortalsJSON(out io.Writer, p api.Portals) error {
	if p.Rules == nil {
		p.Rules = []api.PortalRule{}
	}
	return cli.PrintObject(out, "json", p)
}
