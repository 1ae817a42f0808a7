package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/fleet"
	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/cmd/internal/view"
	"github.com/usherproxy/usher/cmd/kubectl-usher/pods"
	"github.com/usherproxy/usher/proxy/admin"
	"github.com/usherproxy/usher/proxy/admin/client"
	"github.com/usherproxy/usher/proxy/admin/cluster"
	"github.com/usherproxy/usher/proxy/portforward"
)

// defaultDashboardAddress is next to the ports of kube-proxy and the kubelet.
const defaultDashboardAddress = "127.0.0.1:10247"

// dashboardCommand is kubectl usher dashboard with its flags.
type dashboardCommand struct {
	address string
	ushers  []string // NODE=HOST:PORT
	options fleet.Options
}

func newDashboard() *cobra.Command {
	var d dashboardCommand
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "Serve a dashboard of all nodes of a cluster",
		Long: `Serves a page on this machine's loopback address that shows the state of usher on all
nodes: Services, worst first, and for each Service a matrix of its endpoints and the
nodes that connect to them. An endpoint that fails from every node is a red row; a node
that cannot reach endpoints that other nodes reach is a red column. The page links to
the dashboard of each usher instance, at the same address.

usher instances are found and queried through the API server that kubectl would use,
by port-forward and with your permissions: to list pods, and to get and create
pods/portforward, in the namespace of usher's DaemonSet. Without these permissions, or
without a cluster, set --usher.

The instances are queried only while the page is open, at most 16 at once.`,
		Example: `  kubectl usher dashboard
  kubectl usher dashboard --context staging
  kubectl usher dashboard --usher a=192.0.2.1:10249 --usher b=192.0.2.2:10249`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&d.address, "address", defaultDashboardAddress, "Loopback address `host:port` of the page. If the default port is in use, a free port is selected")
	flags.StringVar(&d.options.Address, "admin-address", cli.DefaultAdminAddress, "API address `host:port` of each usher instance on its node")
	flags.StringArrayVar(&d.ushers, "usher", nil, "Query only this usher instance, given as `NODE=HOST:PORT` of its --admin-address. May be repeated")
	cli.Group(flags, "The page")
	view.RegisterFleet(flags, &d.options)
	return cmd
}

func (d *dashboardCommand) run(cmd *cobra.Command) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	find, end, err := d.finder(cmd)
	if err != nil {
		return err
	}
	defer end()
	l, err := d.listen(cmd)
	if err != nil {
		return err
	}
	nodes, err := find(ctx)
	if err == nil && len(d.ushers) == 0 {
		err = d.allowed(ctx, nodes[0])
	}
	if err != nil {
		l.Close()
		return err
	}
	view := cluster.NewView(find)
	defer view.Close()
	server := admin.ServeOn(l, admin.Guard(l.Addr().String(), view.Handler()), admin.MaxAdminClients)
	defer server.Close()
	fmt.Fprintf(cmd.OutOrStdout(), "Open http://%s/ in a browser: %s. Stop it with Ctrl-C.\n", l.Addr(), show.Plural(len(nodes), "node"))
	<-ctx.Done()
	return nil
}

// allowed returns an error if the user may not query n; the permission is the same for all nodes. It ignores other
// errors: the page reports usher instances that do not respond.
func (d *dashboardCommand) allowed(ctx context.Context, n cluster.Node) error {
	if _, err := n.Client.Status(ctx); portforward.IsForbidden(err) {
		return &fleet.ForbiddenError{What: "port-forward to Pods", Namespace: d.options.Namespace, Err: errors.New(client.Cause(err))}
	}
	return nil
}

// listen listens on the loopback interface only: every client of the page has the permissions of the user that serves
// it.
func (d *dashboardCommand) listen(cmd *cobra.Command) (net.Listener, error) {
	host, port, err := net.SplitHostPort(d.address)
	if err != nil {
		return nil, cli.Usagef("--address: invalid value %q: must be HOST:PORT, such as %s", d.address, defaultDashboardAddress)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.Unmap().IsLoopback() {
		return nil, cli.Usagef("--address: invalid value %q: must be a loopback address, such as 127.0.0.1, because the page shows all nodes with your permissions", host)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil && !cmd.Flags().Changed("address") {
		l, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return nil, fmt.Errorf("serve the page: %w", err)
	}
	return l, nil
}

// finder returns a finder of the nodes, and a function that closes the connections to them.
func (d *dashboardCommand) finder(cmd *cobra.Command) (find cluster.Finder, end func(), err error) {
	if len(d.ushers) > 0 {
		for _, name := range append([]string{"admin-address"}, view.ClusterFlags...) {
			if cmd.Flag(name).Changed {
				return nil, nil, cli.Usagef("--%s cannot be combined with --usher: --usher already names the usher instances", name)
			}
		}
		nodes, err := named(d.ushers)
		if err != nil {
			return nil, nil, err
		}
		return func(context.Context) ([]cluster.Node, error) { return nodes, nil }, func() {}, nil
	}
	if _, err := client.New(d.options.Address); err != nil {
		return nil, nil, cli.Usagef("--admin-address: %w", err)
	}
	f, err := pods.New(d.options)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context) ([]cluster.Node, error) {
		ushers, err := f.Find(ctx)
		nodes := make([]cluster.Node, len(ushers))
		for i, u := range ushers {
			nodes[i] = cluster.Node{Name: u.Node, Client: u.Client}
		}
		return nodes, err
	}, f.Close, nil
}

// nodeName matches the node names that --usher accepts: all valid names of Nodes, and some others.
var nodeName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9._]{0,251}[A-Za-z0-9])?$`)

// named returns the nodes of --usher, sorted by name.
func named(ushers []string) (nodes []cluster.Node, err error) {
	for _, u := range ushers {
		name, address, is := strings.Cut(u, "=")
		if !is {
			return nil, cli.Usagef("--usher: invalid value %q: must be NODE=HOST:PORT, such as node-a=192.0.2.1:10249", u)
		}
		if !nodeName.MatchString(name) {
			return nil, cli.Usagef("--usher: invalid node name %q: must consist of letters, digits, '-', '.' and '_', and start and end with a letter or digit", name)
		}
		c, err := client.New(address)
		if err != nil {
			return nil, cli.Usagef("--usher %s: %w", name, err)
		}
		if slices.ContainsFunc(nodes, func(n cluster.Node) bool { return n.Name == name }) {
			return nil, cli.Usagef("--usher: node %s is given twice", name)
		}
		nodes = append(nodes, cluster.Node{Name: name, Client: c})
	}
	slices.SortFunc(nodes, func(a, b cluster.Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes, nil
}
