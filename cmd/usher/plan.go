package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/serve"
	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/cmd/internal/view"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/manifest"
	"github.com/usherproxy/usher/portal/modes"
	"github.com/usherproxy/usher/proxy/admin"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func newPlan() *cobra.Command {
	p := planCommand{}
	cmd := &cobra.Command{
		Use:   "plan FILE… | -",
		Short: "Show what would change on this node if manifests were served",
		Long: `Reads manifests like 'usher run', compares them with the state of the usher instance on
this node, and shows what would change if it served them instead: the handling of
traffic to each VIP, the endpoints for each kind of client (internal: of cluster IPs;
external: from outside the cluster; node: on this node), and errors. If usher is not
running, everything is new. It changes nothing and needs no privileges. - = standard
input.

+ marks additions, - removals, ~ changes; unchanged service ports are only counted. The
exit code is 1 if the manifests have errors. For objects that are unreadable or invalid,
usher keeps the previous state, and so does the plan. If nothing in a file can be read,
there is no plan.`,
		Example: `  usher plan examples/
  kubectl get services,endpointslices,nodes -A -o yaml | usher plan -
  usher plan web.yaml --node-name worker-1 --node-labels topology.kubernetes.io/zone=a`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("plan: at least one file or folder is required")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return p.run(cmd, args) },
	}
	flags := cmd.Flags()
	p.manifests.register(flags)
	flags.StringVar(&p.manifests.node.Name, "node-name", "", "Name of the node. Empty = the hostname")
	flags.StringToStringVar(&p.manifests.node.Labels, "node-labels", nil, "`labels` of the node, such as topology.kubernetes.io/zone=a")
	cli.Choice(flags, &p.portal, "portal", "", "Portal to assume: "+strings.Join(modes.Names()[1:], ", ")+". Empty = the portal of the usher instance on this node, or the first that fits", modes.Names()[1:]...)
	cli.Choice(flags, &p.output, "output", "o", "Output `format`: json or yaml. Empty = text", "json", "yaml")
	p.asks.Register(flags)
	return cmd
}

type planCommand struct {
	manifests manifestFlags
	asks      view.Asks
	portal    string
	output    string
}

func (p *planCommand) run(cmd *cobra.Command, paths []string) error {
	if node := &p.manifests.node; node.Name == "" {
		var err error
		if node.Name, err = serve.Hostname(); err != nil {
			return err
		}
	}
	result, err := p.manifests.check(cmd.InOrStdin(), paths)
	if err != nil {
		return err
	}
	if len(result.Unread) > 0 {
		for _, e := range result.Errors {
			fmt.Fprintln(cmd.ErrOrStderr(), "error:", e)
		}
		return fmt.Errorf("cannot plan: failed to read %s", show.Few(result.Unread))
	}
	c, err := p.asks.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	now, status, err := running(cmd.Context(), c)
	plan := show.Plan{Node: p.manifests.node.Name, ComparedWith: p.asks.Address, Ports: []show.PlannedPort{}, Errors: []string{}, Warnings: []string{}}
	switch {
	case isNobody(err):
		plan.ComparedWith, status = "", api.Status{PortalMode: modes.All[0].Name, Defaults: admin.Defaults()}
		if runtime.GOOS != "linux" || os.Geteuid() != 0 { // no rules can be installed in the kernel
			status.PortalMode = modes.All[len(modes.All)-1].Name
		}
	case err != nil:
		return err
	}
	if plan.Portal = p.portal; p.portal == "" {
		plan.Portal = status.PortalMode
	}
	p.compare(&plan, now, status.Defaults, result)
	if p.output != "" {
		if err := cli.PrintObject(cmd.OutOrStdout(), p.output, plan); err != nil {
			return err
		}
	} else {
		cli.PrintLines(cmd.OutOrStdout(), plan.Lines())
		for _, w := range plan.Warnings {
			fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
		}
		for _, e := range plan.Errors {
			fmt.Fprintln(cmd.ErrOrStderr(), "error:", e)
		}
	}
	if len(plan.Errors) > 0 {
		return cli.ErrSaid
	}
	return nil
}

// compare adds to plan the changes from the current service ports, now, to those of result.
func (p *planCommand) compare(plan *show.Plan, now map[portKey]api.ServicePort, d api.Defaults, result *manifest.Result) {
	for _, e := range result.Errors {
		plan.Errors = append(plan.Errors, e.Error())
	}
	for _, w := range result.Warnings {
		plan.Warnings = append(plan.Warnings, w.Error())
	}
	all := map[portKey]*api.ServicePort{}
	owners := map[string]config.PortID{}
	for _, s := range result.Services {
		for _, port := range s.Ports {
			planned := admin.Planned(port, d)
			all[portKey{s.Name.String(), planned.Name, planned.Family}] = &planned
			for _, v := range port.VIPs {
				at := fmt.Sprintf("%s/%s", v.AddrPort(), port.Protocol)
				if owner, twice := owners[at]; twice {
					plan.Errors = append(plan.Errors, fmt.Sprintf("Service %s: %s %s is also claimed by %s: one of them would not be served there", s.Name, v.Kind, at, owner))
				}
				owners[at] = port.ID
			}
		}
	}
	keep(plan, now, all, result)
	traits := modes.Named(plan.Portal)[0].Traits
	for key := range now {
		if _, there := all[key]; !there {
			all[key] = nil
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(all), portKey.compare) {
		var is *api.ServicePort
		if port, there := now[key]; there {
			is = &port
		}
		plan.Compare(key.service, is, all[key], traits)
	}
}

// keep adds to all the current service ports and endpoints that usher would keep, since manifests that may
// define them are invalid or unreadable.
func keep(plan *show.Plan, now map[portKey]api.ServicePort, all map[portKey]*api.ServicePort, result *manifest.Result) {
	if len(now) == 0 || !result.Unreadable && len(result.Spoiled) == 0 {
		return
	}
	plan.Warnings = append(plan.Warnings, "the plan covers only objects that could be read and are valid; for the rest, usher keeps its current state")
	defined := map[string]bool{}
	for key := range all {
		defined[key.service] = true
	}
	endpoints := map[string]bool{} // namespaces in which the endpoints of a Service may be invalid
	for _, object := range result.Spoiled {
		if kind, name, _ := strings.Cut(object, " "); strings.HasPrefix(kind, "Endpoint") {
			namespace, _, _ := strings.Cut(name, "/")
			endpoints[namespace] = true
		}
	}
	for key, port := range now {
		namespace, _, _ := strings.Cut(key.service, "/")
		switch planned := all[key]; {
		case !defined[key.service]:
			if result.Unreadable || slices.Contains(result.Spoiled, "Service "+key.service) {
				all[key] = &port
			}
		case planned != nil && (result.Unreadable || endpoints[namespace]):
			for _, e := range port.Endpoints {
				if !slices.ContainsFunc(planned.Endpoints, func(p api.Endpoint) bool { return p.Address == e.Address }) {
					planned.Endpoints = append(planned.Endpoints, e)
				}
			}
		}
	}
}

// portKey identifies a service port.
type portKey struct{ service, port, family string }

func (k portKey) compare(other portKey) int {
	return slices.Compare([]string{k.service, k.port, k.family}, []string{other.service, other.port, other.family})
}

// running returns the service ports of a running usher instance, and its status.
func running(ctx context.Context, c *client.Client) (map[portKey]api.ServicePort, api.Status, error) {
	status, err := c.Status(ctx)
	if err != nil {
		return nil, status, err
	}
	list, err := c.Services(ctx, client.ServiceQuery{})
	if err != nil {
		return nil, status, err
	}
	out := map[portKey]api.ServicePort{}
	for _, s := range list.Items {
		detail, err := c.Service(ctx, s.Namespace, s.Name)
		if client.IsNotFound(err) {
			continue // it was deleted meanwhile
		}
		if err != nil {
			return nil, status, err
		}
		for _, port := range detail.Details {
			out[portKey{s.Namespace + "/" + s.Name, port.Name, port.Family}] = port
		}
	}
	return out, status, nil
}

// isNobody reports whether err means that no usher instance responded.
func isNobody(err error) bool {
	var unreachable *client.UnreachableError
	var other *client.NotUsherError
	return errors.As(err, &unreachable) || errors.As(err, &other)
}
