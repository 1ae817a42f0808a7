package view

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/show"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// Shell completion.

// completeByAsking returns a completion function with the names that known returns.
func (f *Asks) completeByAsking(list func(context.Context, *client.Client) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return f.known(cmd, list), cobra.ShellCompDirectiveNoFileComp
	}
}

// completionTime is the time limit for completing names in a cluster.
const completionTime = 3 * time.Second

// known returns the names that list gets from the selected usher instance; in a cluster, from the first instance that
// has any. It returns nil if there are none.
func (f *Asks) known(cmd *cobra.Command, list func(context.Context, *client.Client) []string) (names []string) {
	if f.cluster() {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		ushers, end, err := f.find(ctx, f.options.Node)
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
	c, err := f.Client()
	if err != nil {
		return nil
	}
	defer c.Close()
	c.Slow = nil // a message would appear within the command line
	return list(cmd.Context(), c)
}

// completeNodes completes the nodes of a cluster that run usher.
func (f *Asks) completeNodes(cmd *cobra.Command, _ []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	ushers, end, err := f.find(ctx, "")
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer end()
	for _, u := range ushers {
		names = append(names, u.Node)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// namespaces returns the namespaces of all Services.
func namespaces(ctx context.Context, c *client.Client) (names []string) {
	all, _ := c.Services(ctx, client.ServiceQuery{}) // on an error there is nothing to complete
	for _, s := range all.Items {
		if !slices.Contains(names, s.Namespace) {
			names = append(names, s.Namespace)
		}
	}
	return names
}

// pods returns the endpoints' Pods, or their addresses if they have none. It covers only the first Services, since
// completion must be fast.
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

// CompleteOne completes the only argument of a command, for shell completion.
func CompleteOne(names func(cmd *cobra.Command) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names(cmd), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteServices returns the Services of a namespace that are not in taken.
func (f *Asks) CompleteServices(cmd *cobra.Command, namespace string, taken []string) []string {
	if f.cluster() && !cmd.Flag("namespace").Changed {
		namespace, _ = f.options.Cluster.Namespace() // on an error there is nothing to complete
	}
	return f.known(cmd, func(ctx context.Context, c *client.Client) (names []string) {
		list, _ := c.Services(ctx, client.ServiceQuery{Namespace: namespace}) // on an error there is nothing to complete
		for _, s := range list.Items {
			if !slices.Contains(taken, s.Name) {
				names = append(names, s.Name+"\t"+string(s.State))
			}
		}
		return names
	})
}

// CompleteDemoEndpoints returns the Pod names of the running demo.
func (f *Asks) CompleteDemoEndpoints(cmd *cobra.Command) []string {
	return f.known(cmd, func(ctx context.Context, c *client.Client) (names []string) {
		list, _ := c.DemoEndpoints(ctx) // on an error there is nothing to complete
		for _, e := range list.Items {
			_, name, _ := strings.Cut(e.Pod, "/")
			names = append(names, name+"\t"+e.Does)
		}
		return names
	})
}
