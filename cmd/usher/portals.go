package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/portal"
)

func newPortals() *cobra.Command {
	var output string
	var logs logFlags
	cmd := &cobra.Command{
		Use:   "portals",
		Short: "List the portals that are installed on this node",
		Long: `Lists the rules and routes that usher, this or another process, has installed on
this node, in whichever portal mode, as the kernel has them. Changes nothing.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			print := printPortals
			switch output {
			case "table":
			case "json":
				print = printPortalsJSON
			default:
				return usagef("--output: %q is neither table nor json", output)
			}
			log, err := logs.logger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			list, err := portal.List(cmd.Context(), log)
			if err != nil {
				return fmt.Errorf("reading what is installed: %w", err)
			}
			return print(cmd.OutOrStdout(), list)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	logs.register(cmd.Flags(), "auto")
	return cmd
}

func printPortals(out io.Writer, list []portal.Installed) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(out, "No portals are installed.")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PORTAL\tVIP\tACTION\tLOCAL PORT\tSOURCES\tSERVICE PORT")
	for _, i := range list {
		p := newInstalledPortal(i)
		sources := "all"
		if len(p.Sources) > 0 {
			sources = few(p.Sources)
		}
		if p.Action == "" { // an address: all that is said of it
			fmt.Fprintf(w, "%s\t%s\taddress of this node\t\t\t\n", p.Portal, p.Address)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", p.Portal, i.Rule.Target, p.Action, orDash(p.LocalPort), sources, p.ServicePort)
	}
	return w.Flush()
}

func orDash(port uint16) string {
	if port == 0 {
		return "-"
	}
	return strconv.Itoa(int(port))
}

// installedPortal is a portal in JSON.
type installedPortal struct {
	Portal      string   `json:"portal"`
	Address     string   `json:"address"` // 0.0.0.0 or :: for a node port
	Port        uint16   `json:"port,omitempty"`
	Protocol    string   `json:"protocol,omitempty"`
	Action      string   `json:"action,omitempty"`
	LocalPort   uint16   `json:"localPort,omitempty"`
	Sources     []string `json:"sources,omitempty"`
	ServicePort string   `json:"servicePort,omitempty"`
}

func newInstalledPortal(i portal.Installed) installedPortal {
	t := i.Rule.Target
	p := installedPortal{Portal: i.Mode, Address: t.Addr.String()}
	if t.Port == 0 {
		return p
	}
	p.Port, p.Protocol, p.Action = t.Port, t.Protocol.String(), i.Rule.Action.String()
	p.LocalPort, p.ServicePort = i.Rule.LocalPort, i.Rule.Comment
	if i.Rule.Sources != (portal.Sources{}) {
		p.Sources = strings.Fields(i.Rule.Sources.String())
	}
	return p
}

func printPortalsJSON(out io.Writer, list []portal.Installed) error {
	portals := []installedPortal{}
	for _, i := range list {
		portals = append(portals, newInstalledPortal(i))
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(portals)
}
