package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/usherproxy/usher/cmd/usher/show"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func newGet() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get KIND [NAME…]",
		Short: "List what the usher that runs here serves and knows",
		Long: `Asks the usher that runs on this node and prints a table, as kubectl does, or JSON
or YAML (-o). Changes nothing.`,
		Example: `  usher get services
  usher get endpoints web -n shop
  usher get connections --state=all --retried
  usher get portals -A -o wide`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("there is no kind %q; there are services, endpoints, connections, affinity, portals", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newGetServices(), newGetEndpoints(), newGetConnections(), newGetAffinity(), newGetPortals())
	return cmd
}

// getFlags are what all kinds have.
type getFlags struct {
	asks askFlags
	namespaceFlag
	all    bool
	output string
}

// outputs are the values of --output; "" is a table.
var outputs = []string{"", "wide", "json", "yaml"}

func (f *getFlags) register(flags *pflag.FlagSet) {
	f.namespaceFlag.register(flags)
	flags.BoolVarP(&f.all, "all-namespaces", "A", false, "of all namespaces")
	flags.StringVarP(&f.output, "output", "o", "", "`format`: wide, json or yaml; a table without it")
	f.asks.register(flags)
}

func (f *getFlags) check() error {
	if !slices.Contains(outputs, f.output) {
		return usagef("--output: %q is none of wide, json, yaml", f.output)
	}
	return nil
}

// wanted reports whether a Service, "namespace/name", is of those that the command
// line asks for: of the namespace, and among names, if there are any.
func (f *getFlags) wanted(service string, names []string) bool {
	namespace, name, _ := strings.Cut(service, "/")
	if len(names) > 0 {
		return slices.ContainsFunc(names, func(n string) bool { return f.serviceName(n) == service || f.all && n == name })
	}
	return f.all || namespace == f.namespace
}

// only returns the Service that the command line asks for, if it is one; usher
// can look for that by itself.
func (f *getFlags) only(names []string) string {
	if len(names) == 1 && !f.all {
		return f.serviceName(names[0])
	}
	return ""
}

// completeServices completes the names of Services, for the shell.
func (f *getFlags) completeServices(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return f.asks.completeServices(cmd, f.namespace, args), cobra.ShellCompDirectiveNoFileComp
}

// get is what one kind does: ask, choose, print.
func get[T any](f *getFlags, run func(ctx context.Context, c *client.Client, names []string) ([]T, error), columns []show.Column[T], kind string) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, names []string) error {
		if err := f.check(); err != nil {
			return err
		}
		return f.asks.ask(func(c *client.Client) error {
			items, err := run(cmd.Context(), c, names)
			if err != nil {
				return err
			}
			return printItems(cmd, f, items, columns, kind)
		})
	}
}

// printItems prints items in the format that was asked for.
func printItems[T any](cmd *cobra.Command, f *getFlags, items []T, columns []show.Column[T], kind string) error {
	out := cmd.OutOrStdout()
	switch {
	case f.output == "json" || f.output == "yaml":
		if items == nil {
			items = []T{}
		}
		return printObject(out, f.output, map[string]any{"total": len(items), "items": items})
	case len(items) == 0 && f.all:
		fmt.Fprintf(cmd.ErrOrStderr(), "No %s.\n", kind)
		return nil
	case len(items) == 0:
		fmt.Fprintf(cmd.ErrOrStderr(), "No %s in namespace %s; -A lists those of all namespaces.\n", kind, f.namespace)
		return nil
	}
	if !f.all {
		columns = slices.DeleteFunc(slices.Clone(columns), func(c show.Column[T]) bool { return c.Title == "NAMESPACE" })
	}
	return show.Table(out, columns, items, f.output == "wide")
}

// printObject prints v as JSON or YAML.
func printObject(out io.Writer, format string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err == nil && format == "yaml" {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", strings.TrimRight(string(text), "\n"))
	return err
}

func newGetServices() *cobra.Command {
	var f getFlags
	var q client.ServiceQuery
	cmd := &cobra.Command{
		Use:     "services [NAME…]",
		Aliases: []string{"service", "svc"},
		Short:   "Services: state, endpoints, connections",
		Long: `Lists Services. STATE is ok; degraded (some endpoint is suspicious, in quarantine,
terminating or not ready); down (every endpoint is in quarantine); no-endpoints;
no-local-endpoints (internalTrafficPolicy is Local, and no endpoint is here: clients
of the cluster IP are dropped); external-elsewhere (the same of externalTrafficPolicy
and clients from outside, who have to come by another node); or problem (some port
is not served). -o wide says why. ENDPOINTS is how many take their turn, of how
many. Counts are since usher has started.`,
		Example: `  usher get services -A
  usher get services web -o yaml
  usher get services -A --filter 10.96.0 --sort retries`,
		ValidArgsFunction: f.completeServices,
	}
	cmd.RunE = get(&f, func(ctx context.Context, c *client.Client, names []string) ([]api.Service, error) {
		return f.services(ctx, c, q, names)
	}, show.Services, "Services")
	flags := cmd.Flags()
	flags.StringVar(&q.Text, "filter", "", "only those with this `text` in the name, a port's name, a VIP, or an endpoint's address or Pod")
	flags.StringVar(&q.State, "state", "", "only those in this `state`")
	flags.StringVar(&q.Protocol, "protocol", "", "only those with a port of this `protocol`: TCP, UDP, SCTP")
	flags.StringVar(&q.Sort, "sort", "", "by what, the largest first: active, connections, failed, retries, bytes; by name without it")
	f.register(flags)
	return cmd
}

// services returns the Services that the command line asks for. One that is named
// and is not there is an error, as in kubectl.
func (f *getFlags) services(ctx context.Context, c *client.Client, q client.ServiceQuery, names []string) ([]api.Service, error) {
	filtered := q != (client.ServiceQuery{Sort: q.Sort})
	switch namespace, name, _ := strings.Cut(f.only(names), "/"); {
	case name != "":
		q.Namespace, q.Name = namespace, name
	case !f.all && len(names) == 0: // names may have a namespace of their own
		q.Namespace = f.namespace
	}
	list, err := c.Services(ctx, q)
	if err != nil {
		return nil, err
	}
	items := slices.DeleteFunc(list.Items, func(s api.Service) bool { return !f.wanted(s.Namespace+"/"+s.Name, names) })
	for _, n := range names {
		there := slices.ContainsFunc(items, func(s api.Service) bool { return f.wanted(s.Namespace+"/"+s.Name, []string{n}) })
		if !there && !filtered {
			return nil, fmt.Errorf("there is no Service %s that usher serves; -A searches all namespaces", f.serviceName(n))
		}
	}
	return items, nil
}

func newGetEndpoints() *cobra.Command {
	var f getFlags
	var q client.ServiceQuery
	cmd := &cobra.Command{
		Use:     "endpoints [SERVICE…]",
		Aliases: []string{"endpoint", "ep"},
		Short:   "endpoints: state, quarantine, connections, failures",
		Long: `Lists the endpoints of Services, each port's for itself. STATE is ready;
quarantined (it failed, or its probes did, and is passed over while there is
another one; QUARANTINE says when it is probed next, or for how much longer that
is, and why);
suspicious (it takes its turn, but reset most of the connections that ended last, or
closed them without a byte for a client that had sent some);
terminating (used only if none is ready); or not-ready.`,
		Example: `  usher get endpoints web
  usher get endpoints -A -o wide
  usher get endpoints -A --state down`,
		ValidArgsFunction: f.completeServices,
	}
	cmd.RunE = get(&f, func(ctx context.Context, c *client.Client, names []string) (items []show.PortEndpoint, err error) {
		services, err := f.services(ctx, c, q, names)
		if err != nil {
			return nil, err
		}
		for _, s := range services {
			detail, err := c.Service(ctx, s.Namespace, s.Name)
			if client.IsNotFound(err) {
				continue // it has gone meanwhile
			}
			if err != nil {
				return nil, err
			}
			items = append(items, show.PortEndpoints(detail)...)
		}
		return items, nil
	}, show.Endpoints, "endpoints")
	cmd.Flags().StringVar(&q.Text, "filter", "", "only those of Services with this `text` in the name, a port's name, a VIP, or an endpoint's address or Pod")
	cmd.Flags().StringVar(&q.State, "state", "", "only those of Services in this `state`, one of those of 'usher get services'")
	f.register(cmd.Flags())
	return cmd
}

func newGetConnections() *cobra.Command {
	var f getFlags
	var q client.ConnectionQuery
	cmd := &cobra.Command{
		Use:     "connections [SERVICE… | ID]",
		Aliases: []string{"connection", "conn"},
		Short:   "connections: client, endpoint, attempts, bytes",
		Long: `Lists connections, SCTP associations and UDP sessions, the newest first: those that
are open, or with --state those that have ended and are still in the trace. With
the ID of one it tells all attempts that were made for it.

STATE is connecting, established, or how it ended; docs/life-of-a-connection.md
has the list.`,
		Example: `  usher get connections -A
  usher get connections web --client 10.244.1.0/24
  usher get connections -A --state=all --retried
  usher get connection 42`,
		ValidArgsFunction: f.completeServices,
	}
	list := get(&f, func(ctx context.Context, c *client.Client, names []string) ([]api.Connection, error) {
		q.Service = f.only(names)
		list, err := c.Connections(ctx, q)
		return slices.DeleteFunc(list.Items, func(c api.Connection) bool { return !f.wanted(c.Service, names) }), err
	}, show.Connections, "connections")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			if id, err := strconv.ParseUint(strings.TrimPrefix(args[0], "#"), 10, 64); err == nil {
				return f.printConnection(cmd, id)
			}
		}
		return list(cmd, args)
	}
	flags := cmd.Flags()
	flags.StringVar(&q.State, "state", "", "`which`: open (without it), ended, all")
	flags.StringVar(&q.Client, "client", "", "only those of this `client`: an address, an address and port, or a network")
	flags.StringVar(&q.Endpoint, "endpoint", "", "only those with this `endpoint`: an address, an address and port, or a Pod")
	flags.StringVar(&q.Protocol, "protocol", "", "only those of this `protocol`: TCP, UDP, SCTP")
	flags.StringVar(&q.End, "end", "", "only those that ended with this `code`")
	flags.BoolVar(&q.Retried, "retried", false, "only those with more than one attempt")
	f.register(flags)
	return cmd
}

// printConnection tells one connection with its attempts.
func (f *getFlags) printConnection(cmd *cobra.Command, id uint64) error {
	if err := f.check(); err != nil {
		return err
	}
	return f.asks.ask(func(c *client.Client) error {
		connection, err := c.Connection(cmd.Context(), id)
		switch {
		case err != nil:
			return err
		case f.output == "json" || f.output == "yaml":
			return printObject(cmd.OutOrStdout(), f.output, connection)
		}
		printLines(cmd.OutOrStdout(), show.Waterfall(connection, terminalWidth(cmd.OutOrStdout())))
		return nil
	})
}

func newGetAffinity() *cobra.Command {
	var f getFlags
	var q client.AffinityQuery
	cmd := &cobra.Command{
		Use:     "affinity [SERVICE…]",
		Aliases: []string{"affinities"},
		Short:   "session affinity: which client has which endpoint, and for how long",
		Long: `Lists the clients that get the same endpoint again, of Services with
sessionAffinity: ClientIP. LEFT is how long that lasts if the client makes no new
connection.`,
		Example: `  usher get affinity sticky
  usher get affinity -A --client 10.244.1.7`,
		ValidArgsFunction: f.completeServices,
	}
	cmd.RunE = get(&f, func(ctx context.Context, c *client.Client, names []string) ([]api.AffinityEntry, error) {
		q.Service = f.only(names)
		list, err := c.Affinity(ctx, q)
		return slices.DeleteFunc(list.Items, func(a api.AffinityEntry) bool { return !f.wanted(a.Service, names) }), err
	}, show.Affinity, "clients with affinity")
	cmd.Flags().StringVar(&q.Client, "client", "", "only this `client`: an address or a network")
	cmd.Flags().StringVar(&q.Endpoint, "endpoint", "", "only those with this `endpoint`: an address, an address and port, or a Pod")
	f.register(cmd.Flags())
	return cmd
}

func newGetPortals() *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use:     "portals [SERVICE…]",
		Aliases: []string{"portal"},
		Short:   "the portal's rules: wanted against installed",
		Long: `Lists the portal's rules of Services. STATE says whether the kernel has a rule as
it should be: ok, missing, or differs (the next line says what is installed). With
-A also what belongs to no Service, such as rules that nobody wants (extra).

'usher portals' lists what is installed also where no usher runs.`,
		Example: `  usher get portals web -o wide
  usher get portals -A`,
		ValidArgsFunction: f.completeServices,
	}
	cmd.RunE = get(&f, func(ctx context.Context, c *client.Client, names []string) ([]api.PortalRule, error) {
		portals, err := c.Portals(ctx)
		rules := slices.DeleteFunc(portals.Rules, func(r api.PortalRule) bool { return !f.wanted(show.ServiceOfRule(r), names) })
		if f.output == "" || f.output == "wide" {
			rules = show.WithInstalled(rules)
		}
		return rules, err
	}, show.Portals, "rules")
	f.register(cmd.Flags())
	return cmd
}
