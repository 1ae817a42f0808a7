package view

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/fleet"
	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/portal/modes"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// Viewers are the commands that query usher instances: get, trace, explain and diagnose.
type Viewers struct {
	// Fleet returns a finder of the usher instances of a cluster, which the commands query by default. If it is nil,
	// they can query only the instance of this node.
	Fleet func(fleet.Options) (fleet.Finder, error)
}

// Commands returns the commands.
func (v Viewers) Commands() []*cobra.Command {
	return []*cobra.Command{v.newGet(), v.newTrace(), v.newExplain(), v.newDiagnose()}
}

// Asks returns the flags that select the usher instances for another command.
func (v Viewers) Asks() Asks { return Asks{newFleet: v.Fleet} }

// long returns the description of a command. It adds ofCluster where a cluster can be queried.
func (v Viewers) long(text, ofCluster string) string {
	if v.Fleet == nil {
		return text
	}
	return text + "\n\n" + ofCluster
}

// Asks are the flags that select the usher instances to query. The zero value is for a command that queries one
// instance.
type Asks struct {
	Address string

	newFleet  func(fleet.Options) (fleet.Finder, error) // nil where only one instance can be queried
	local     bool
	one       bool // query only one instance; in a cluster, --node selects it
	options   fleet.Options
	namespace *NamespaceFlag // with a cluster, its default is that of kubectl's context
	fleet     fleet.Finder   // set during a query
}

// One returns f limited to one usher instance: in a cluster, the user must set --node.
func (f Asks) One() Asks {
	f.one = true
	return f
}

// cluster reports whether the command queries the usher instances of a cluster.
func (f *Asks) cluster() bool { return f.newFleet != nil && !f.local }

// Register registers --admin-address.
func (f *Asks) Register(flags *pflag.FlagSet) {
	flags.StringVar(&f.Address, "admin-address", cli.DefaultAdminAddress, "API address `host:port` of the usher instance to query")
}

// ClusterFlags are the flags for querying a cluster.
var ClusterFlags = []string{"node", "usher-namespace", "context", "kubeconfig", "server"}

// RegisterCluster is Register for commands that can also query the usher instances of a cluster. It also registers
// completion of names. namespace is the command's own flag, whose default in a cluster is that of kubectl's context.
// Call it when all other flags are registered.
func (f *Asks) RegisterCluster(cmd *cobra.Command, namespace *NamespaceFlag) {
	flags := cmd.Flags()
	f.namespace = namespace
	f.Register(flags)
	cli.Group(flags, "Filters and output")
	for name, list := range map[string]func(context.Context, *client.Client) []string{"namespace": namespaces, "endpoint": pods} {
		if flags.Lookup(name) != nil {
			_ = cmd.RegisterFlagCompletionFunc(name, f.completeByAsking(list)) // it has none yet
		}
	}
	if f.newFleet == nil {
		return
	}
	flags.Lookup("admin-address").Usage = "API address `host:port` of each usher instance on its node; with --local, of the local instance"
	flags.BoolVar(&f.local, "local", false, "Query only the usher instance at --admin-address, such as that of 'usher demo', instead of a cluster")
	RegisterFleet(flags, &f.options)
	_ = cmd.RegisterFlagCompletionFunc("node", f.completeNodes)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return f.complete(cmd) }
}

// RegisterFleet registers ClusterFlags, and makes kubectl's kubeconfig the default.
func RegisterFleet(flags *pflag.FlagSet, o *fleet.Options) {
	o.Cluster.AsUser = true
	flags.StringVar(&o.Node, "node", "", "Query only the usher instance on this `node` of the cluster")
	flags.StringVar(&o.Namespace, "usher-namespace", metav1.NamespaceSystem, "`namespace` of usher's Pods")
	flags.StringVar(&o.Cluster.Context, "context", "", "`context` of the kubeconfig. Empty = the current context")
	flags.StringVar(&o.Cluster.Kubeconfig, "kubeconfig", "", "Kubeconfig `file` for the API server. Empty = kubectl's kubeconfig")
	flags.StringVarP(&o.Cluster.Server, "server", "s", "", "`URL` of the API server; overrides the kubeconfig")
	cli.Group(flags, "Usher instances of a cluster")
}

// complete checks the flags, and sets the default of the namespace.
func (f *Asks) complete(cmd *cobra.Command) (err error) {
	if f.local {
		for _, name := range ClusterFlags {
			if cmd.Flag(name).Changed {
				return cli.Usagef("--%s cannot be combined with --local: it selects from a cluster, and --local queries a single usher instance", name)
			}
		}
		return nil
	}
	if _, err := client.New(f.Address); err != nil {
		return cli.Usagef("--admin-address: %w", err)
	}
	if f.one && f.options.Node == "" {
		return cli.Usagef("%s queries a single usher instance: set --node, or --local for the instance on this machine", cmd.Name())
	}
	if !cmd.Flag("namespace").Changed {
		if f.namespace.Namespace, err = f.options.Cluster.Namespace(); err != nil && f.options.Cluster.Kubeconfig == "" {
			err = fmt.Errorf("%w; set --kubeconfig, or --local for the instance on this machine", err)
		}
	}
	return err
}

// Client returns a client of the usher instance at Address. The client reports the first slow answer on standard error.
func (f *Asks) Client() (*client.Client, error) {
	c, err := client.New(f.Address)
	if err != nil {
		return nil, cli.Usagef("--admin-address: %w", err)
	}
	var once sync.Once
	c.Slow = func(reason string, most time.Duration) {
		once.Do(func() { fmt.Fprintf(os.Stderr, "usher: waiting up to %s: %s\n", most, reason) })
	}
	return c, nil
}

// Ask calls do with a client of the usher instance at Address, and adds a hint to do's error.
func (f *Asks) Ask(do func(c *client.Client) error) error {
	c, err := f.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	return f.hint(do(c))
}

// AskAll calls do with all selected usher instances, in the order of their nodes. Without a cluster, it is Ask: the
// only instance has no node.
func (f *Asks) AskAll(cmd *cobra.Command, do func(ushers []fleet.Usher) error) error {
	if !f.cluster() {
		return flagError(cmd, f.Ask(func(c *client.Client) error { return do([]fleet.Usher{{Client: c}}) }))
	}
	ushers, end, err := f.find(cmd.Context(), f.options.Node)
	if err != nil {
		return err
	}
	defer end()
	return do(ushers)
}

// flagError returns a UsageError if err is usher's error about a query parameter that has the name of a flag.
func flagError(cmd *cobra.Command, err error) error {
	var rejected *api.Error
	if !errors.As(err, &rejected) || rejected.Code != http.StatusBadRequest {
		return err
	}
	if name, _, ok := strings.Cut(rejected.Message, ":"); ok && cmd.Flags().Lookup(name) != nil {
		return cli.Usagef("--%w", err)
	}
	return err
}

// AskOne is AskAll for commands that query a single usher instance; see One.
func (f *Asks) AskOne(cmd *cobra.Command, do func(c *client.Client) error) error {
	return f.AskAll(cmd, func(ushers []fleet.Usher) error {
		err := do(ushers[0].Client)
		_, err = fleet.Answered([]fleet.Answer[struct{}]{{From: ushers[0], Err: err}})
		return err
	})
}

// Renew returns a client of the instance that now runs on the node of AskOne's instance, whose Pod may have been
// replaced. Call it within AskOne. Without a cluster, it returns nil.
func (f *Asks) Renew(ctx context.Context) (*client.Client, error) {
	if !f.cluster() {
		return nil, nil
	}
	found, err := f.fleet.Find(ctx)
	if err != nil {
		return nil, err
	}
	return found[0].Client, nil
}

// find returns the usher instances of the cluster, or only that of node if it is set. end closes the connections to
// them.
func (f *Asks) find(ctx context.Context, node string) (ushers []fleet.Usher, end func(), err error) {
	o := f.options
	o.Address, o.Node = f.Address, node
	if f.fleet, err = f.newFleet(o); err != nil {
		return nil, nil, err
	}
	if ushers, err = f.fleet.Find(ctx); err != nil {
		f.fleet.Close()
		return nil, nil, err
	}
	return ushers, f.fleet.Close, nil
}

// hint adds advice to the error of a query to a single instance.
func (f *Asks) hint(err error) error {
	var unreachable *client.UnreachableError
	switch {
	case errors.As(err, &unreachable) && unreachable.Silent:
		return fmt.Errorf(`%w
A process accepted the connection but does not respond: it hangs, is stopped, or the
machine is overloaded. Check its log and 'ps -o stat,wchan,args'`, err)
	case errors.As(err, &unreachable):
		err = fmt.Errorf(`%w
Start it with 'usher run', or try it with 'usher demo'. If usher serves its API at
another address, set --admin-address`, err)
		if here, _ := netip.ParseAddrPort(unreachable.Address); !here.Addr().IsLoopback() || !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		if handover.Claimed() {
			return fmt.Errorf("%w.\nAn usher process is running here: it manages the portals", err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if installed, _ := modes.List(ctx, nil); len(installed) > 0 { // none if this process may not list rules
			err = fmt.Errorf("%w.\nA previous usher process left %s of its portal; until usher runs, clients of the VIPs are not served.\nThe next 'usher run' takes the rules over; 'usher cleanup' removes them", err, show.Plural(len(installed), "rule"))
		}
		return err
	case errors.As(err, new(*client.NotUsherError)):
		return fmt.Errorf(`%w
It may be kube-proxy, which uses the same port, or an older usher. To query another
usher instance, set --admin-address`, err)
	}
	return err
}

// NamespaceFlag is --namespace, the namespace of names without one.
type NamespaceFlag struct {
	Namespace string
	flag      *pflag.Flag
}

// Register registers --namespace.
func (f *NamespaceFlag) Register(flags *pflag.FlagSet) {
	flags.StringVarP(&f.Namespace, "namespace", "n", corev1.NamespaceDefault, "`namespace` for names without one")
	f.flag = flags.Lookup("namespace")
}

// ServiceName returns "namespace/name" for a name that may have no namespace.
func (f *NamespaceFlag) ServiceName(name string) string {
	if name == "" || strings.Contains(name, "/") {
		return name
	}
	return f.Namespace + "/" + name
}

// EndpointName returns the name of an endpoint for a query. It adds a namespace to the name of a Pod without one: that
// of the first of services or, without services, that of the flag. Addresses are unchanged.
func (f *NamespaceFlag) EndpointName(name string, services []string) string {
	if _, err := netip.ParseAddr(name); err == nil || name == "" || strings.ContainsAny(name, "/:") {
		return name
	}
	namespace := f.Namespace
	if len(services) > 0 {
		namespace, _, _ = strings.Cut(f.ServiceName(services[0]), "/")
	}
	return namespace + "/" + name
}

// clockAhead returns by how much this machine's clock is ahead of that of u's node; 0 if unknown.
func clockAhead(ctx context.Context, u fleet.Usher) time.Duration {
	status, err := u.Client.Status(ctx)
	if err != nil || status.Now.IsZero() {
		return 0
	}
	return time.Since(status.Now)
}

// oneKnows is MustKnow for several usher instances: one of them must know the Service.
func oneKnows(ctx context.Context, ushers []fleet.Usher, service, hint string) error {
	return one(ctx, ushers, func(ctx context.Context, c *client.Client) error { return MustKnow(ctx, c, service, hint) })
}

// one returns nil if knows succeeds for at least one of the usher instances. Otherwise it returns the unknownError of
// the first that responds or, if none does, the error of fleet.Answered.
func one(ctx context.Context, ushers []fleet.Usher, knows func(context.Context, *client.Client) error) error {
	answers := fleet.Ask(ctx, ushers, func(ctx context.Context, u fleet.Usher) (unknown *unknownError, err error) {
		if err = knows(ctx, u.Client); errors.As(err, &unknown) {
			return unknown, nil
		}
		return nil, err
	})
	good, err := fleet.Answered(answers)
	if len(good) == 0 {
		return err
	}
	for _, a := range good {
		if a.Value == nil {
			return nil
		}
	}
	return good[0].Value
}

// unknownError means that there is no such Service, or none in that namespace.
type unknownError struct{ text string }

func (e *unknownError) Error() string { return e.text }

// MustKnow returns an unknownError if usher serves no Service named service, "namespace/name", and keeps no connection
// to one. The namespace * means any, and then connections do not count. The error ends in hint if no name is similar.
func MustKnow(ctx context.Context, c *client.Client, service, hint string) error {
	namespace, name, _ := strings.Cut(service, "/")
	if namespace != "" && name != "" {
		found, err := c.Services(ctx, client.ServiceQuery{Namespace: strings.Trim(namespace, "*"), Name: name, Max: 1})
		if err != nil || len(found.Items) > 0 {
			return err
		}
	}
	if namespace != "*" {
		if _, err := c.Connections(ctx, client.ConnectionQuery{Service: service, State: "all", Max: 1}); !client.IsNotFound(err) {
			return err
		}
	}
	all, err := c.Services(ctx, client.ServiceQuery{}) // for suggestions
	if err != nil {
		return err
	}
	var like, elsewhere []string
	for _, s := range all.Items {
		switch {
		case s.Name == name:
			elsewhere = append(elsewhere, show.Clean(serviceOf(s)))
		case s.Namespace == namespace || namespace == "*":
			like = append(like, show.Clean(s.Name))
		}
	}
	text := fmt.Sprintf("no Service %s is served", service)
	plain, _, _ := strings.Cut(name, ":")
	switch meant := cli.DidYouMean(plain, like); {
	case meant != "":
		text += meant
	case len(elsewhere) > 0:
		text += "; there is " + show.Few(elsewhere)
	case namespace == "*":
		text = fmt.Sprintf("no Service %s is served in any namespace", name)
	default:
		text += hint
	}
	return &unknownError{text}
}

// HowToList returns a hint for MustKnow.
func HowToList(cmd *cobra.Command) string {
	return fmt.Sprintf("; '%s get services -A' lists all Services", cmd.Root().CommandPath())
}

// mustKnowNamespace returns an unknownError if usher serves no Service in a namespace.
func mustKnowNamespace(ctx context.Context, c *client.Client, namespace string) error {
	all, err := c.Services(ctx, client.ServiceQuery{})
	if err != nil {
		return err
	}
	var others []string
	for _, s := range all.Items {
		if s.Namespace == namespace {
			return nil
		}
		others = append(others, show.Clean(s.Namespace))
	}
	slices.Sort(others)
	return &unknownError{fmt.Sprintf("there is no Service in namespace %s that usher serves%s", namespace,
		cmp.Or(cli.DidYouMean(namespace, slices.Compact(others)), "; use -A to list all namespaces"))}
}
