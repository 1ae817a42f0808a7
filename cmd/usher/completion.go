package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/usherproxy/usher/cmd/usher/cli"
	"github.com/usherproxy/usher/cmd/usher/fleet"
	"github.com/usherproxy/usher/cmd/usher/show"
	"github.com/usherproxy/usher/config/kube"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// What the shell completes.

// completeFlags lets the shell complete the values of a command's flags, and of its
// subcommands'.
func completeFlags(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if c, ok := f.Value.(*cli.Choices); ok {
			_ = cmd.RegisterFlagCompletionFunc(f.Name, c.Complete) // it has none yet
		}
	})
	if cmd.Flags().Lookup("admin-address") != nil {
		for name, complete := range map[string]func(context.Context, *client.Client) []string{"namespace": namespaces, "endpoint": pods} {
			if cmd.Flags().Lookup(name) != nil {
				_ = cmd.RegisterFlagCompletionFunc(name, completeByAsking(complete))
			}
		}
	}
	if cmd.Flags().Lookup(clusterFlag) != nil {
		_ = cmd.RegisterFlagCompletionFunc("node", nodes)
	}
	for _, sub := range cmd.Commands() {
		completeFlags(sub)
	}
}

// completeByAsking completes by what the usher at --admin-address tells.
func completeByAsking(list func(context.Context, *client.Client) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return asksOf(cmd).known(cmd, list), cobra.ShellCompDirectiveNoFileComp
	}
}

// asksOf returns the flags that say who is asked, as they are on the command line.
func asksOf(cmd *cobra.Command) *askFlags {
	value := func(name string) string {
		if flag := cmd.Flag(name); flag != nil {
			return flag.Value.String()
		}
		return ""
	}
	f := &askFlags{address: value("admin-address"), cluster: value(clusterFlag) == "true", namespace: &namespaceFlag{}}
	f.options = fleet.Options{Node: value("node"), Namespace: value("usher-namespace"),
		Cluster: kube.Connection{Kubeconfig: value("kubeconfig"), Context: value("context"), Server: value("server"), AsUser: true}}
	return f
}

// completionTime is how long a person waits for names of a cluster.
const completionTime = 3 * time.Second

// known returns what list tells of the usher that is asked, of a cluster's the first that answers; nil if none
// does.
func (f *askFlags) known(cmd *cobra.Command, list func(context.Context, *client.Client) []string) (names []string) {
	if f.cluster {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		ushers, end, err := f.find(ctx)
		if err != nil {
			return nil
		}
		defer end()
		for _, u := range ushers {
			if names = list(ctx, u.Client); names != nil || ctx.Err() != nil {
				break
			}
		}
		return names
	}
	c, err := f.client()
	if err != nil {
		return nil
	}
	defer c.Close()
	c.Slow = nil // between the words of a command line there is no place for it
	return list(cmd.Context(), c)
}

// nodes completes the nodes of a cluster that have an usher.
func nodes(cmd *cobra.Command, _ []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	f := asksOf(cmd)
	f.options.Node = ""
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	ushers, end, err := f.find(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer end()
	for _, u := range ushers {
		names = append(names, u.Node)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// namespaces returns those of all Services.
func namespaces(ctx context.Context, c *client.Client) (names []string) {
	all, _ := c.Services(ctx, client.ServiceQuery{}) // nothing to complete, then
	for _, s := range all.Items {
		if !slices.Contains(names, s.Namespace) {
			names = append(names, s.Namespace)
		}
	}
	return names
}

// pods returns the Pods, or addresses, of the endpoints of some Services: it has to be fast.
func pods(ctx context.Context, c *client.Client) (names []string) {
	const most = 50
	some, _ := c.Services(ctx, client.ServiceQuery{Max: most})
	for _, s := range some.Items {
		detail, _ := c.Service(ctx, s.Namespace, s.Name)
		for _, e := range show.PortEndpoints(detail) {
			names = append(names, cmp.Or(e.Pod, e.Address))
		}
	}
	return names
}

// completeOne completes the only argument of a command, for the shell.
func completeOne(names func(cmd *cobra.Command) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names(cmd), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeServices returns the Services of a namespace that are not in taken.
func (f *askFlags) completeServices(cmd *cobra.Command, namespace string, taken []string) []string {
	if f.cluster && !cmd.Flag("namespace").Changed {
		namespace, _ = f.options.Cluster.Namespace() // nothing to complete, then
	}
	return f.known(cmd, func(ctx context.Context, c *client.Client) (names []string) {
		list, _ := c.Services(ctx, client.ServiceQuery{Namespace: namespace}) // nothing to complete, then
		for _, s := range list.Items {
			if !slices.Contains(taken, s.Name) {
				names = append(names, s.Name+"\t"+string(s.State))
			}
		}
		return names
	})
}

// completeDemoEndpoints returns the Pods' names of the demo that runs.
func (f *askFlags) completeDemoEndpoints(cmd *cobra.Command) []string {
	return f.known(cmd, func(ctx context.Context, c *client.Client) (names []string) {
		list, _ := c.DemoEndpoints(ctx) // nothing to complete, then
		for _, e := range list.Items {
			_, name, _ := strings.Cut(e.Pod, "/")
			names = append(names, name+"\t"+e.Does)
		}
		return names
	})
}
