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
	"github.com/spf13/pflag"

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

// diffCommand is check --diff.
type diffCommand struct {
	asks   view.Asks
	portal string
	output string
	flags  []string // names of the flags that require --diff
}

func (d *diffCommand) register(flags *pflag.FlagSet, node *config.Node) {
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	own.StringVar(&node.Name, "node-name", "", "Name of the node. Empty = the hostname")
	own.StringToStringVar(&node.Labels, "node-labels", nil, "`labels` of the node, such as topology.kubernetes.io/zone=a")
	cli.Choice(own, &d.portal, "portal", "", "Portal to assume: "+strings.Join(modes.Names()[1:], ", ")+". Empty = the portal of the usher instance on this node, or the first that fits", modes.Names()[1:]...)
	cli.Choice(own, &d.output, "output", "o", "Output `format`: json or yaml. Empty = text", "json", "yaml")
	d.asks.Register(own)
	own.VisitAll(func(f *pflag.Flag) { d.flags = append(d.flags, f.Name) })
	flags.AddFlagSet(own)
}

func (d *diffCommand) run(cmd *cobra.Command, manifests *manifestFlags, paths []string) error {
	if node := &manifests.node; node.Name == "" {
		var err error
		if node.Name, err = serve.Hostname(); err != nil {
			return err
		}
	}
	c, err := d.asks.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	now, status, err := running(cmd.Context(), c)
	diff := show.Diff{Node: manifests.node.Name, ComparedWith: d.asks.Address, Ports: []show.PortDiff{}, Errors: []string{}, Warnings: []string{}}
	var unreachable *client.UnreachableError
	var other *client.NotUsherError
	switch {
	case errors.As(err, &unreachable), errors.As(err, &other):
		diff.ComparedWith, status = "", api.Status{PortalMode: modes.All[0].Name}
		if runtime.GOOS != "linux" || os.Geteuid() != 0 { // no rules can be installed in the kernel
			status.PortalMode = modes.None
		}
	case err != nil:
		return err
	}
	if manifests.policy = config.DefaultPolicy(); status.Settings != nil { // an earlier version has none
		manifests.policy = config.ParsePolicy(status.Settings)
	}
	result, err := manifests.check(cmd.InOrStdin(), paths)
	if err != nil {
		return err
	}
	if len(result.Unread) > 0 {
		for _, e := range result.Errors {
			fmt.Fprintln(cmd.ErrOrStderr(), "error:", e)
		}
		return fmt.Errorf("cannot compare: failed to read %s", show.Few(result.Unread))
	}
	if diff.Portal = d.portal; d.portal == "" {
		diff.Portal = status.PortalMode
	}
	compare(&diff, now, status.Settings, result)
	if d.output != "" {
		if err := cli.PrintObject(cmd.OutOrStdout(), d.output, diff); err != nil {
			return err
		}
	} else {
		cli.PrintLines(cmd.OutOrStdout(), diff.Lines())
		for _, w := range diff.Warnings {
			fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
		}
		for _, e := range diff.Errors {
			fmt.Fprintln(cmd.ErrOrStderr(), "error:", e)
		}
	}
	if len(diff.Errors) > 0 {
		return cli.ErrSaid
	}
	return nil
}

// compare adds to diff the errors and warnings of result, and the changes from the current service ports, now, to those
// of result.
func compare(diff *show.Diff, now map[portKey]api.ServicePort, ofNode map[string]string, result *manifest.Result) {
	for _, e := range result.Errors {
		diff.Errors = append(diff.Errors, e.Error())
	}
	for _, w := range result.Warnings {
		diff.Warnings = append(diff.Warnings, w.Error())
	}
	all := map[portKey]*api.ServicePort{}
	owners := map[string]config.PortID{}
	for _, s := range result.Services {
		for _, port := range s.Ports {
			planned := admin.Planned(port, ofNode)
			all[portKey{s.Name.String(), planned.Name, planned.Family}] = &planned
			for _, v := range port.VIPs {
				at := fmt.Sprintf("%s/%s", v.AddrPort(), port.Protocol)
				if owner, twice := owners[at]; twice {
					diff.Errors = append(diff.Errors, fmt.Sprintf("Service %s: %s %s is also claimed by %s: one of them would not be served there", s.Name, v.Kind, at, owner))
				}
				owners[at] = port.ID
			}
		}
	}
	keep(diff, now, all, result)
	traits := modes.Named(diff.Portal)[0].Traits
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
		diff.Compare(key.service, is, all[key], traits)
	}
}

// keep extends all by the current service ports and endpoints that usher would keep, because the manifests that may
// define them are invalid or unreadable.
func keep(diff *show.Diff, now map[portKey]api.ServicePort, all map[portKey]*api.ServicePort, result *manifest.Result) {
	if len(now) == 0 || !result.Unreadable && len(result.Spoiled) == 0 {
		return
	}
	diff.Warnings = append(diff.Warnings, "the comparison covers only objects that could be read and are valid; for the rest, usher keeps its current state")
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
