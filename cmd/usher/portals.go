package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy/admin"
	"github.com/usherproxy/usher/proxy/admin/api"
)

func newPortals() *cobra.Command {
	var output, address string
	var logs logFlags
	cmd := &cobra.Command{
		Use:   "portals",
		Short: "List the portals that are installed on this node, beside what is wanted",
		Long: `Lists the rules and routes that usher, this or another process, has installed on
this node, in whichever portal mode, as the kernel has them. Changes nothing.

The usher that runs here is asked what it wants. The column STATE tells of each
rule whether it is as it should be: ok, missing from the kernel, differs (what is
installed is another one), or extra (nobody wants it). If no usher answers, what
is installed is listed without the column.`,
		Args: noArgs,
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
			portals, err := askPortals(cmd.Context(), address)
			if err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "What is wanted is not known, since no usher answers: %v\n", err)
				installed, err := portal.List(cmd.Context(), log)
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
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	cmd.Flags().StringVar(&address, "admin-address", defaultAdminAddress, "`host:port` at which the usher that runs here serves its API")
	logs.register(cmd.Flags(), "auto")
	return cmd
}

// askPatience is how long the usher that runs may take to answer: it reads the
// rules of ten thousand Services.
const askPatience = 10 * time.Second

// askPortals asks the usher that serves its API at address for its portals.
func askPortals(ctx context.Context, address string) (portals api.Portals, err error) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+api.Prefix+"/portals", nil)
	if err != nil {
		return portals, err
	}
	// Through no proxy: the address is this node's.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return portals, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10)) // as much as there is
		return portals, fmt.Errorf("%s: %s: %s", request.URL, response.Status, strings.TrimSpace(string(text)))
	}
	if err := json.NewDecoder(response.Body).Decode(&portals); err != nil {
		return api.Portals{}, fmt.Errorf("%s: %w", request.URL, err)
	}
	return portals, nil
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
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(state string, cells ...string) {
		if known {
			cells = append([]string{state}, cells...)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	row("STATE", "PORTAL", "VIP", "ACTION", "LOCAL PORT", "SOURCES", "SERVICE PORT")
	for _, r := range p.Rules {
		vip := r.VIP
		if r.Protocol != "" {
			vip += "/" + r.Protocol
		}
		row(r.State, r.Mode, vip, r.Action, orDash(r.LocalPort), sourcesCell(r.Sources), r.Service)
		if r.Installed != nil {
			row("", "", "(installed)", r.Installed.Action, orDash(r.Installed.LocalPort), sourcesCell(r.Installed.Sources), "")
		}
	}
	return w.Flush()
}

func orDash(port uint16) string {
	if port == 0 {
		return "-"
	}
	return strconv.Itoa(int(port))
}

func sourcesCell(sources []string) string {
	if len(sources) == 0 {
		return "all"
	}
	return few(sources)
}

// printPortalsJSON prints what GET /api/v1/portals answers, of which only the
// rules are known without an usher that runs.
func printPortalsJSON(out io.Writer, p api.Portals) error {
	if p.Rules == nil {
		p.Rules = []api.PortalRule{}
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(p)
}
