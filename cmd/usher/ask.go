package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

	"github.com/usherproxy/usher/cmd/usher/cli"
	"github.com/usherproxy/usher/cmd/usher/fleet"
	"github.com/usherproxy/usher/cmd/usher/show"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/portal/modes"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// askFlags say which usher is asked, or that those of a cluster are. Those who ask share them.
type askFlags struct {
	address string

	cluster   bool
	one       bool // is asked only, with cluster that of a node
	options   fleet.Options
	namespace *namespaceFlag // whose default is that of kubectl's context, with cluster
	fleet     *fleet.Fleet   // while it is asked
}

func (f *askFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.address, "admin-address", defaultAdminAddress, "`host:port` at which the usher that is asked serves its API")
}

// clusterFlag is the name of the flag that says to ask a cluster. Commands that have subcommands have it for what is
// typed before those: all else is up to them.
const clusterFlag = "cluster"

// clusterFlags are those that say how a cluster is asked.
var clusterFlags = []string{"node", "usher-namespace", "context", "kubeconfig", "server"}

// registerCluster is register for commands that can ask the ushers of a cluster, too. namespace is the
// command's own.
func (f *askFlags) registerCluster(cmd *cobra.Command, namespace *namespaceFlag) {
	flags := cmd.Flags()
	f.namespace = namespace
	f.register(flags)
	cli.Group(flags, "What is asked for, and how it is told")
	flags.BoolVar(&f.cluster, clusterFlag, false, "ask the ushers of all nodes of kubectl's cluster, by port-forward through its API server; --admin-address is then where each serves its API on its own node")
	registerFleet(flags, &f.options)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return f.complete(cmd) }
}

// registerFleet registers clusterFlags.
func registerFleet(flags *pflag.FlagSet, o *fleet.Options) {
	o.Cluster.AsUser = true
	flags.StringVar(&o.Node, "node", "", "ask only the usher of this `node` of the cluster")
	flags.StringVar(&o.Namespace, "usher-namespace", metav1.NamespaceSystem, "the `namespace` of the ushers' Pods")
	flags.StringVar(&o.Cluster.Context, "context", "", "`context` of the kubeconfig; empty means its current one")
	flags.StringVar(&o.Cluster.Kubeconfig, "kubeconfig", "", "`file` that says how to reach the API server; empty means that of kubectl")
	flags.StringVarP(&o.Cluster.Server, "server", "s", "", "`URL` of the API server, instead of the kubeconfig's")
	cli.Group(flags, "The ushers of a cluster")
}

// complete checks the flags, and gives the namespace its default.
func (f *askFlags) complete(cmd *cobra.Command) (err error) {
	if !f.cluster {
		for _, name := range clusterFlags {
			if flag := cmd.Flag(name); flag != nil && flag.Changed {
				return usagef("--%s is for --cluster", name)
			}
		}
		return nil
	}
	if _, err := client.New(f.address); err != nil {
		return usagef("--admin-address: %w", err)
	}
	if f.one && f.options.Node == "" {
		return usagef("%s asks one usher: name its node by --node", cmd.Name())
	}
	if !cmd.Flag("namespace").Changed {
		f.namespace.namespace, err = f.options.Cluster.Namespace()
	}
	return err
}

// client returns a client of that usher. While usher does not answer, standard error says so.
func (f *askFlags) client() (*client.Client, error) {
	c, err := client.New(f.address)
	if err != nil {
		return nil, usagef("--admin-address: %w", err)
	}
	var once sync.Once
	c.Slow = func(reason string) {
		once.Do(func() { fmt.Fprintf(os.Stderr, "usher: waiting up to %s: %s\n", c.Timeout, reason) })
	}
	return c, nil
}

// ask calls do with a client of that usher, and adds to its error what to do about it.
func (f *askFlags) ask(do func(c *client.Client) error) error {
	c, err := f.client()
	if err != nil {
		return err
	}
	defer c.Close()
	return f.hint(do(c))
}

// askAll calls do with all ushers that are asked, in the order of their nodes; without --cluster it is one, on
// no node. It adds to do's error what to do about it.
func (f *askFlags) askAll(cmd *cobra.Command, do func(ushers []fleet.Usher) error) error {
	if !f.cluster {
		return f.ask(func(c *client.Client) error { return do([]fleet.Usher{{Client: c}}) })
	}
	ushers, end, err := f.find(cmd.Context())
	if err != nil {
		return err
	}
	defer end()
	return do(ushers)
}

// askOne is askAll for commands that ask one usher only.
func (f *askFlags) askOne(cmd *cobra.Command, do func(c *client.Client) error) error {
	return f.askAll(cmd, func(ushers []fleet.Usher) error {
		err := do(ushers[0].Client)
		_, err = fleet.Answered([]fleet.Answer[struct{}]{{From: ushers[0], Err: err}})
		return err
	})
}

// find returns the ushers of the cluster. end ends the connections to them.
func (f *askFlags) find(ctx context.Context) (ushers []fleet.Usher, end func(), err error) {
	f.options.Address = f.address
	if f.fleet, err = fleet.New(f.options); err != nil {
		return nil, nil, err
	}
	if ushers, err = f.fleet.Find(ctx); err != nil {
		f.fleet.Close()
		return nil, nil, err
	}
	return ushers, f.fleet.Close, nil
}

// hint adds to an error what to do about it.
func (f *askFlags) hint(err error) error {
	var unreachable *client.UnreachableError
	var other *client.NotUsherError
	switch {
	case errors.As(err, &unreachable):
		err = fmt.Errorf(`%w
If no usher runs here, 'usher demo' starts one to try things with, and 'usher run'
one that serves. If it serves its API elsewhere, say so with --admin-address`, err)
		if here, _ := netip.ParseAddrPort(unreachable.Address); !here.Addr().IsLoopback() || !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		if handover.Claimed() {
			return fmt.Errorf("%w.\nOne does run here: it manages the portals", err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if installed, _ := modes.List(ctx, nil); len(installed) > 0 { // without the right to look, none
			err = fmt.Errorf("%w.\nAn usher was here: %s of its portal, which lead nowhere while none runs.\nThe next 'usher run' takes them over; 'usher cleanup' removes them", err, show.Plural(len(installed), "rule"))
		}
		return err
	case errors.As(err, &other):
		return fmt.Errorf(`%w
It may be kube-proxy, which has the same port, or an older usher. If another usher
is meant, say where it serves its API with --admin-address`, err)
	}
	return err
}

// takes is for commands that take from least to most arguments, which are called what.
func takes(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return usagef("%s takes %s, and got %s", cmd.Name(), what, show.Plural(len(args), "argument"))
		}
		return nil
	}
}

// namespaceFlag says which namespace a name without one is of.
type namespaceFlag struct {
	namespace string
	flag      *pflag.Flag
}

func (f *namespaceFlag) register(flags *pflag.FlagSet) {
	flags.StringVarP(&f.namespace, "namespace", "n", corev1.NamespaceDefault, "the `namespace` of names without one")
	f.flag = flags.Lookup("namespace")
}

// serviceName returns "namespace/name" for a name that may have no namespace.
func (f *namespaceFlag) serviceName(name string) string {
	if name == "" || strings.Contains(name, "/") {
		return name
	}
	return f.namespace + "/" + name
}

// oneKnows is mustKnow for several ushers, of which one has to know the Service.
func oneKnows(ctx context.Context, ushers []fleet.Usher, service, hint string) error {
	return one(ctx, ushers, func(ctx context.Context, c *client.Client) error { return mustKnow(ctx, c, service, hint) })
}

// oneKnowsNamespace is mustKnowNamespace for several ushers, of which one has to know it.
func oneKnowsNamespace(ctx context.Context, ushers []fleet.Usher, namespace string) error {
	return one(ctx, ushers, func(ctx context.Context, c *client.Client) error { return mustKnowNamespace(ctx, c, namespace) })
}

// one returns nil if knows is content with one of several ushers, and else what it said of the first.
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

// unknownError says that there is no such Service, or none in that namespace.
type unknownError struct{ text string }

func (e *unknownError) Error() string { return e.text }

// mustKnow returns an unknownError if usher serves no Service of that name, "namespace/name", and
// knows of no connection to one. The namespace * is any. hint is for when there is nothing like it.
func mustKnow(ctx context.Context, c *client.Client, service, hint string) error {
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
	all, err := c.Services(ctx, client.ServiceQuery{}) // for what may be meant
	if err != nil {
		return err
	}
	var like, elsewhere []string
	for _, s := range all.Items {
		switch {
		case s.Name == name:
			elsewhere = append(elsewhere, serviceOf(s))
		case s.Namespace == namespace || namespace == "*":
			like = append(like, s.Name)
		}
	}
	text := fmt.Sprintf("there is no Service %s that usher serves", service)
	plain, _, _ := strings.Cut(name, ":")
	switch meant := cli.DidYouMean(plain, like); {
	case meant != "":
		text += meant
	case len(elsewhere) > 0:
		text += "; there is " + show.Few(elsewhere)
	case namespace == "*":
		text = fmt.Sprintf("there is no Service %s that usher serves, in any namespace", name)
	default:
		text += hint
	}
	return &unknownError{text}
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
		others = append(others, s.Namespace)
	}
	slices.Sort(others)
	return &unknownError{fmt.Sprintf("there is no Service in namespace %s that usher serves%s", namespace,
		cmp.Or(cli.DidYouMean(namespace, slices.Compact(others)), "; -A lists those of all namespaces"))}
}
