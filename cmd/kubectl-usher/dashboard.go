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

// defaultDashboardAddress is beside the ports of kube-proxy and the kubelet.
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
		Short: "Serve a page with all nodes of a cluster: is it the Pod, or is it the node?",
		Long: `Serves a page, on this machine's loopback only, that shows what the ushers of all
nodes tell: Services with the worst first, and for each Service its endpoints
beside the nodes that connect to them. An endpoint that fails from every node is
a red row, a node from which endpoints fail that others reach a red column. The
page of each single usher is a click away, at the same address.

The ushers are found, and asked, through the API server that kubectl would use, by
port-forward and with your own rights: to list pods, and to get and create
pods/portforward, in the namespace of usher's DaemonSet. Who may not, or has no
cluster, names them by --usher.

They are asked only while somebody looks at the page, and at most 16 at once.`,
		Example: `  kubectl usher dashboard
  kubectl usher dashboard --context staging
  kubectl usher dashboard --usher node-a=192.0.2.1:10249 --usher node-b=192.0.2.2:10249`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&d.address, "address", defaultDashboardAddress, "loopback `host:port` for the page; if the default is taken, another port is used")
	flags.StringVar(&d.options.Address, "admin-address", cli.DefaultAdminAddress, "`host:port` at which each usher of the cluster serves its API on its own node")
	flags.StringArrayVar(&d.ushers, "usher", nil, "an usher, as `NODE=HOST:PORT` of its --admin-address; may be given several times. No other is asked then")
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
	fmt.Fprintf(cmd.OutOrStdout(), "Open http://%s/ in a browser: %s. Ctrl-C ends it.\n", l.Addr(), show.Plural(len(nodes), "node"))
	<-ctx.Done()
	return nil
}

// allowed returns an error if the right to ask is missing, which is the same for all nodes. That an usher does
// not answer is for the page to tell.
func (d *dashboardCommand) allowed(ctx context.Context, n cluster.Node) error {
	if _, err := n.Client.Status(ctx); portforward.IsForbidden(err) {
		return &fleet.ForbiddenError{What: "port-forward to Pods", Namespace: d.options.Namespace, Err: errors.New(client.Cause(err))}
	}
	return nil
}

// listen listens on the loopback interface, and nowhere else: whoever reaches the page has the rights of who
// serves it.
func (d *dashboardCommand) listen(cmd *cobra.Command) (net.Listener, error) {
	host, port, err := net.SplitHostPort(d.address)
	if err != nil {
		return nil, cli.Usagef("--address: %q is not HOST:PORT, such as %s", d.address, defaultDashboardAddress)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.Unmap().IsLoopback() {
		return nil, cli.Usagef("--address: %q is not a loopback address, such as 127.0.0.1: whoever reaches the page sees all nodes with your rights", host)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil && !cmd.Flags().Changed("address") {
		l, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return nil, fmt.Errorf("serving the page: %w", err)
	}
	return l, nil
}

// finder returns what finds the nodes, and what ends the connections to them.
func (d *dashboardCommand) finder(cmd *cobra.Command) (find cluster.Finder, end func(), err error) {
	if len(d.ushers) > 0 {
		for _, name := range append([]string{"admin-address"}, view.ClusterFlags...) {
			if cmd.Flag(name).Changed {
				return nil, nil, cli.Usagef("--%s is for the ushers of a cluster, and --usher names them", name)
			}
		}
		nodes, err := named(d.ushers)
		if err != nil {
			return nil, nil, err
		}
		return func(context.Context) ([]cluster.Node, error) { return nodes, nil }, func() {}, nil
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

// nodeName is what --usher takes for one: names of Kubernetes' nodes, and a little more.
var nodeName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9._]{0,251}[A-Za-z0-9])?$`)

// named returns the nodes of --usher, sorted by name.
func named(ushers []string) (nodes []cluster.Node, err error) {
	for _, u := range ushers {
		name, address, is := strings.Cut(u, "=")
		if !is {
			return nil, cli.Usagef("--usher: %q is not NODE=HOST:PORT, such as node-a=192.0.2.1:10249", u)
		}
		if !nodeName.MatchString(name) {
			return nil, cli.Usagef("--usher: %q is not a node's name: letters, digits, '-', '.' and '_', with a letter or digit at both ends", name)
		}
		c, err := client.New(address)
		if err != nil {
			return nil, cli.Usagef("--usher %s: %w", name, err)
		}
		if slices.ContainsFunc(nodes, func(n cluster.Node) bool { return n.Name == name }) {
			return nil, cli.Usagef("--usher: the node %s is named twice", name)
		}
		nodes = append(nodes, cluster.Node{Name: name, Client: c})
	}
	slices.SortFunc(nodes, func(a, b cluster.Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes, nil
}
