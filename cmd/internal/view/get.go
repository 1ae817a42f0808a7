package view

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/fleet"
	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/portal/modes"
	"github.com/usherproxy/usher/proxy/admin"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

func (v Viewers) newGet() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get KIND [NAME…]",
		Short: "List Services, endpoints, connections, affinity and portal rules",
		Long: v.long(`Queries the usher instance on this node and prints a table, as kubectl does, or JSON,
YAML or names (-o). With -w it keeps running and prints a line for each new object and
each state change, within a second. It changes nothing.

On a terminal, names are shortened and columns omitted until a table fits; -o wide
needs at least 160 columns. In a pipe, tables are complete.`,
			`It queries the usher instances on all nodes, unless --local or --node is set.
Services and endpoints of all nodes are then merged: counts are summed, latencies
are the maximum, STATE is the worst, and NODE lists the nodes in that state, unless
it is all of them. ENDPOINTS is that of the node with the fewest ready ones. Addresses
and settings that differ between nodes are left out. --per-node lists each node
separately, as for all other kinds.
--state and --filter apply on each node. Nodes that do not respond are reported.`),
		Example: `  usher get services
  usher get all -A
  usher get endpoints web -n shop -w
  usher get connections --state=all --retried
  usher get portals -A -o wide`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				kinds := cli.Names(cmd)
				return cli.Usagef("unknown kind %q: must be one of %s%s", args[0], strings.Join(kinds, ", "), cli.DidYouMean(args[0], kinds))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(v.newGetServices(), v.newGetEndpoints(), v.newGetConnections(), v.newGetAffinity(), v.newGetPortals(), v.newGetAll())
	return cmd
}

// KindAndName splits the first argument of get into two if it is KIND/NAME, the form that -o name prints. From further
// arguments, it removes the same kind.
func KindAndName(root *cobra.Command, args []string) []string {
	if len(args) < 2 || args[0] != "get" {
		return args
	}
	kind, name, ok := strings.Cut(args[1], "/")
	cmd, rest, err := root.Find([]string{"get", kind})
	if !ok || err != nil || len(rest) > 0 || cmd.Name() == "get" {
		return args
	}
	list := []string{"get", kind, name}
	for _, arg := range args[2:] {
		if other, name, ok := strings.Cut(arg, "/"); ok && (cmd.Name() == other || cmd.HasAlias(other)) {
			arg = name
		}
		list = append(list, arg)
	}
	return list
}

// getFlags are the flags of all kinds.
type getFlags struct {
	asks Asks
	NamespaceFlag
	all    bool
	watch  bool
	apart  bool // list the Services and endpoints of each node separately
	output string

	asked bool // printOutdated was called
}

// table reports whether the output is a table.
func (f *getFlags) table() bool { return f.output == "" || f.output == "wide" }

func (f *getFlags) register(cmd *cobra.Command) {
	f.registerWith(cmd, "wide", "json", "yaml")
}

// registerAll is register for kinds with -o name and -w.
func (f *getFlags) registerAll(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&f.watch, "watch", "w", false, "After listing, print new and changed objects until Ctrl-C")
	f.registerWith(cmd, "wide", "name", "json", "yaml")
}

func (f *getFlags) registerWith(cmd *cobra.Command, outputs ...string) {
	flags := cmd.Flags()
	f.NamespaceFlag.Register(flags)
	flags.BoolVarP(&f.all, "all-namespaces", "A", false, "List objects in all namespaces")
	cli.Choice(flags, &f.output, "output", "o", "Output `format`: "+strings.Join(outputs, ", ")+". Empty = table", outputs...)
	f.asks.RegisterCluster(cmd, &f.NamespaceFlag)
}

// registerApart registers --per-node, for kinds that are merged from all nodes of a cluster.
func (f *getFlags) registerApart(flags *pflag.FlagSet) {
	if f.asks.cluster() {
		flags.BoolVar(&f.apart, "per-node", false, "List the state of each node separately instead of merging it")
	}
}

// wanted reports whether the command line selects a service, "namespace/name": it must be one of names or, without
// names, in the selected namespace.
func (f *getFlags) wanted(service string, names []string) bool {
	namespace, name, _ := strings.Cut(service, "/")
	if len(names) > 0 {
		return slices.ContainsFunc(names, func(n string) bool { return f.ServiceName(n) == service || f.all && n == name })
	}
	return f.all || namespace == f.Namespace
}

// nameOf returns the name that a user types for a Service, "namespace/name".
func (f *getFlags) nameOf(service string) string {
	if namespace, name, _ := strings.Cut(service, "/"); namespace == f.Namespace && !f.all {
		return name
	}
	return service
}

// only returns the Service that the command line selects if it is a single one, so that usher can filter for it.
// Otherwise it returns "".
func (f *getFlags) only(names []string) string {
	if len(names) == 1 && !f.all {
		return f.ServiceName(names[0])
	}
	return ""
}

// completeServices completes the names of Services, for shell completion.
func (f *getFlags) completeServices(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return f.asks.CompleteServices(cmd, f.Namespace, args), cobra.ShellCompDirectiveNoFileComp
}

// kind is one kind of objects that can be listed.
type kind[T any] struct {
	plural  string
	columns []show.Column[T]
	list    func(ctx context.Context, u fleet.Usher, names []string) ([]T, error)
	service func(T) string // the item's Service, "namespace/name"
	// order sorts the items of a cluster; merge, if not nil, merges those about the same object.
	order func(a, b T) int
	merge func([]fleet.Reported[T]) []fleet.Reported[T]
	// state is the state that an item must have on a node to be listed; nil or "" means any.
	state *string
	// keep, if not nil, reports whether an item is in that state; otherwise list itself omits items in other states.
	keep func(T) bool
	// name is the output of -o name. key identifies an item, and -w prints the item again if the text of news changes.
	// Kinds without them do not have these flags.
	name, news, key func(T) string
	// past, if not nil, reports whether an item ended before a time or, if that is zero, at any time. -w does not print
	// items that ended before it started.
	past func(item T, before time.Time) bool
	// address, if not nil, is accepted in place of the Service's name.
	address func(T) string
}

// inState returns the end of a message about missing items: the state that they must have, or "" for any state.
func (k kind[T]) inState() string {
	if k.state == nil || *k.state == "" {
		return ""
	}
	return " in state " + *k.state
}

// wanted reports whether the command line selects an item.
func (k kind[T]) wanted(f *getFlags, item T, names []string) bool {
	return f.wanted(k.service(item), names) || k.address != nil && slices.Contains(names, k.address(item))
}

// get implements the command for one kind: it queries, filters and prints.
func get[T any](f *getFlags, k kind[T]) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, names []string) error {
		return f.asks.AskAll(cmd, func(ushers []fleet.Usher) error {
			if f.watch {
				return watch(cmd, f, k, ushers, names)
			}
			if k.merge != nil { // Services or endpoints
				defer f.printOutdated(cmd, ushers)
			}
			items, err := k.known(cmd.Context(), f, ushers, names)
			if err != nil && !fleet.IsSilent(err) {
				return err
			}
			return cmp.Or(printItems(cmd, f, k, items), err)
		})
	}
}

// printOutdated prints the problems because of which Services may be outdated, or new ones are not served, each with its
// nodes. It does so only once.
func (f *getFlags) printOutdated(cmd *cobra.Command, ushers []fleet.Usher) {
	if f.asked {
		return
	}
	f.asked = true
	nodes := map[string][]string{}
	for _, a := range fleet.Ask(cmd.Context(), ushers, func(ctx context.Context, u fleet.Usher) (api.Status, error) { return u.Status(ctx) }) {
		for _, p := range a.Value.Problems { // none if there is no answer: the list has returned the error
			if p.Object == "usher" && slices.Contains([]string{"APIServerFailed", "NotServing", "PortalFailed"}, p.Reason) {
				text := p.Message
				if !f.asks.cluster() { // otherwise, equal texts of nodes are merged
					text = "since " + p.Since.Local().Format(time.DateTime) + " " + text
				}
				nodes[text] = append(nodes[text], a.From.Node)
			}
		}
	}
	for _, text := range slices.Sorted(maps.Keys(nodes)) {
		on := ""
		if f.asks.cluster() {
			on = " on " + show.Few(slices.Compact(nodes[text]))
		}
		fmt.Fprintln(cmd.ErrOrStderr(), "usher"+on+": "+show.Clean(text))
	}
}

// together reports whether items of several nodes are merged.
func (k kind[T]) together(f *getFlags) bool { return f.asks.cluster() && k.merge != nil && !f.apart }

// items returns the items that the command line selects. With a fleet.SilentError, it returns those of the nodes that
// responded.
func (k kind[T]) items(ctx context.Context, f *getFlags, ushers []fleet.Usher, names []string) (items []fleet.Reported[T], err error) {
	answers, err := fleet.Answered(fleet.Ask(ctx, ushers, func(ctx context.Context, u fleet.Usher) ([]T, error) {
		items, err := k.list(ctx, u, names)
		if err != nil && (len(names) == 0 || !client.IsNotFound(err)) { // known reports Services that do not exist
			return nil, err
		}
		return slices.DeleteFunc(items, func(item T) bool { return !k.wanted(f, item, names) || k.keep != nil && !k.keep(item) }), nil
	}))
	for _, a := range answers {
		for _, item := range a.Value {
			items = append(items, fleet.Reported[T]{Node: a.From.Node, Item: item})
		}
	}
	if !f.asks.cluster() {
		return items, err
	}
	if k.together(f) {
		items = k.merge(items)
		for i := range items {
			if k.inState() != "" {
				items[i].Others = len(answers) - len(items[i].Nodes)
			}
		}
	}
	slices.SortStableFunc(items, func(a, b fleet.Reported[T]) int { return k.order(a.Item, b.Item) })
	return items, err
}

// known is items, but it returns an error for a selected name that usher does not know, as kubectl does. To catch
// misspellings, it also returns one if the selected namespace has no Services, except with -w, which waits for them.
func (k kind[T]) known(ctx context.Context, f *getFlags, ushers []fleet.Usher, names []string) ([]fleet.Reported[T], error) {
	items, err := k.items(ctx, f, ushers, names)
	if err != nil && !fleet.IsSilent(err) {
		return nil, err
	}
	if len(items)+len(names) == 0 && f.flag.Changed && !f.all && !f.watch {
		known := func(ctx context.Context, c *client.Client) error { return mustKnowNamespace(ctx, c, f.Namespace) }
		if err := one(ctx, ushers, known); err != nil {
			return nil, err
		}
	}
	for _, n := range names {
		if slices.ContainsFunc(items, func(t fleet.Reported[T]) bool { return k.wanted(f, t.Item, []string{n}) }) {
			continue
		}
		if k.address != nil && isAddress(n) {
			if k.keep != nil { // it may be in another state
				all := k
				all.keep = nil
				found, err := all.items(ctx, f, ushers, []string{n})
				if err != nil && !fleet.IsSilent(err) {
					return nil, err
				}
				if len(found) > 0 {
					continue
				}
			}
			return nil, fmt.Errorf("there is no endpoint %s of a Service that usher serves", n)
		}
		service, hint := f.ServiceName(n), "; use -A to search all namespaces"
		if f.all {
			hint = ""
		}
		if f.all && n != service {
			service = "*/" + n
		}
		if err := oneKnows(ctx, ushers, service, hint); err != nil {
			return nil, err
		}
	}
	return items, err
}

func isAddress(name string) bool {
	_, err := netip.ParseAddrPort(name)
	return err == nil
}

// printItems prints items in the selected format.
func printItems[T any](cmd *cobra.Command, f *getFlags, k kind[T], items []fleet.Reported[T]) error {
	out := cmd.OutOrStdout()
	switch {
	case f.output == "json" || f.output == "yaml":
		if items == nil {
			items = []fleet.Reported[T]{}
		}
		return cli.PrintObject(out, f.output, map[string]any{"total": len(items), "items": items})
	case len(items) == 0 && len(cmd.Flags().Args()) > 0:
		fmt.Fprintf(cmd.ErrOrStderr(), "No %s of %s%s.\n", k.plural, show.Few(cmd.Flags().Args()), k.inState())
		return nil
	case len(items) == 0 && f.all:
		fmt.Fprintf(cmd.ErrOrStderr(), "No %s%s.\n", k.plural, k.inState())
		return nil
	case len(items) == 0:
		fmt.Fprintf(cmd.ErrOrStderr(), "No %s in namespace %s%s; use -A to list all namespaces.\n", k.plural, f.Namespace, k.inState())
		return nil
	case f.output == "name":
		for _, item := range items {
			fmt.Fprintln(out, show.Clean(k.name(item.Item)))
		}
		return nil
	}
	return show.Table(out, fleet.Columns(k.columnsFor(f, items), k.together(f)), items, f.output == "wide", cli.TableWidth(out, f.output == "wide"))
}

// columnsFor returns the columns for items, without NAMESPACE if all are of the selected namespace.
func (k kind[T]) columnsFor(f *getFlags, items []fleet.Reported[T]) []show.Column[T] {
	elsewhere := func(t fleet.Reported[T]) bool { return !strings.HasPrefix(k.service(t.Item), f.Namespace+"/") }
	if f.all || slices.ContainsFunc(items, elsewhere) {
		return k.columns
	}
	return slices.DeleteFunc(slices.Clone(k.columns), func(c show.Column[T]) bool { return c.Title == "NAMESPACE" })
}

func (v Viewers) newGetAll() *cobra.Command {
	f := getFlags{asks: v.Asks()}
	cmd := &cobra.Command{
		Use:   "all [SERVICE…]",
		Short: "Services, their endpoints and open connections",
		Long:  "Lists Services, their endpoints and open connections in separate tables.",
		Example: `  usher get all
  usher get all web -n shop -o wide`,
		ValidArgsFunction: f.completeServices,
		RunE: func(cmd *cobra.Command, names []string) error {
			var services client.ServiceQuery
			var silent error // other nodes answered
			for i, list := range []func(*cobra.Command, []string) error{
				get(&f, f.serviceKind(&services)), get(&f, f.endpointKind(&services)), get(&f, f.connectionKind(&client.ConnectionQuery{}, &reach{})),
			} {
				if i > 0 && f.output != "name" {
					fmt.Fprintln(cmd.OutOrStdout())
				}
				switch err := list(cmd, names); {
				case fleet.IsSilent(err):
					silent = err
				case err != nil:
					return err
				}
			}
			return silent
		},
	}
	f.registerApart(cmd.Flags())
	f.registerWith(cmd, "wide", "name")
	return cmd
}

func (v Viewers) newGetAffinity() *cobra.Command {
	f := getFlags{asks: v.Asks()}
	var q client.AffinityQuery
	cmd := &cobra.Command{
		Use:     "affinity [SERVICE…]",
		Aliases: []string{"affinities"},
		Short:   "session affinity: client, endpoint, remaining time",
		Long: `Lists the clients of Services with sessionAffinity: ClientIP, and the endpoint of
each client. LEFT is the remaining time if the client opens no new connection.`,
		Example: `  usher get affinity sticky
  usher get affinity -A --client 10.244.1.7`,
		ValidArgsFunction: f.completeServices,
	}
	cmd.RunE = get(&f, kind[api.AffinityEntry]{
		plural: "clients with affinity", columns: show.Affinity, service: func(a api.AffinityEntry) string { return a.Service },
		order: func(a, b api.AffinityEntry) int { return cmp.Compare(a.Service, b.Service) },
		list: func(ctx context.Context, u fleet.Usher, names []string) ([]api.AffinityEntry, error) {
			q := q
			q.Service, q.Endpoint = f.only(names), f.EndpointName(q.Endpoint, names)
			list, err := u.Affinity(ctx, q)
			return list.Items, err
		},
	})
	cmd.Flags().StringVar(&q.Client, "client", "", "Only this `client`: an address or a network")
	cmd.Flags().StringVar(&q.Endpoint, "endpoint", "", "Only this `endpoint`: an address, an address and port, or a Pod")
	f.register(cmd)
	return cmd
}

func (v Viewers) newGetPortals() *cobra.Command {
	f := getFlags{asks: v.Asks()}
	cmd := &cobra.Command{
		Use:     "portals [SERVICE…]",
		Aliases: []string{"portal"},
		Short:   "the portal's rules: wanted compared with installed",
		Long: `Lists the portal's rules of Services. STATE compares each rule with the kernel: ok,
missing, or differs (the next line shows the installed rule). -A also lists rules
that belong to no Service, such as leftovers (extra), and in a second table the objects that
all Services share: chains, routing rules and a route that preserve client addresses, and
fallback routes on a node without a default route.

If the usher instance of this node does not respond, it lists the rules and routes that
any usher process has installed here, as reported by the kernel.`,
		Example: `  usher get portals web -o wide
  usher get portals -A`,
		ValidArgsFunction: f.completeServices,
	}
	var parts []api.PortalPart
	list := get(&f, kind[api.PortalRule]{
		plural: "rules", columns: show.Portals, service: show.ServiceOfRule,
		order: func(api.PortalRule, api.PortalRule) int { return 0 }, // installed rules come after the wanted ones
		list: func(ctx context.Context, u fleet.Usher, names []string) ([]api.PortalRule, error) {
			portals, err := u.Portals(ctx)
			if err != nil && !f.asks.cluster() {
				fmt.Fprintf(cmd.ErrOrStderr(), "Cannot determine which rules are wanted: %v\n", err)
				portals.Rules, err = installedRules(ctx)
			}
			if !f.asks.cluster() { // otherwise, several goroutines would write parts, which are not printed
				parts = portals.Parts
			}
			rules := slices.DeleteFunc(portals.Rules, func(r api.PortalRule) bool { return !f.wanted(show.ServiceOfRule(r), names) })
			if f.table() {
				rules = show.WithInstalled(rules)
			}
			return rules, err
		},
	})
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		err := list(cmd, names)
		if out := cmd.OutOrStdout(); err == nil && f.all && len(names) == 0 && len(parts) > 0 && !f.asks.cluster() && f.table() {
			fmt.Fprintln(out)
			return show.Table(out, show.PortalParts, parts, false, cli.TableWidth(out, false))
		}
		return err
	}
	f.register(cmd)
	return cmd
}

// installedRules returns the portal rules that any usher process has installed on this node, in any portal mode.
func installedRules(ctx context.Context) (rules []api.PortalRule, err error) {
	installed, err := modes.List(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("list installed rules: %w", err)
	}
	for _, i := range installed {
		rules = append(rules, admin.NewPortalRule(i.Mode, i.Rule))
	}
	return rules, nil
}
