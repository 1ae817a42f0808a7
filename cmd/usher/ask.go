package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/usherproxy/usher/cmd/usher/show"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// askFlags say which usher is asked. Those who ask share them.
type askFlags struct {
	address string
}

func (f *askFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.address, "admin-address", defaultAdminAddress, "`host:port` at which the usher that is asked serves its API")
}

// client returns a client of that usher.
func (f *askFlags) client() (*client.Client, error) {
	c, err := client.New(f.address)
	if err != nil {
		return nil, usagef("--admin-address: %w", err)
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

// hint adds to an error what to do about it.
func (f *askFlags) hint(err error) error {
	var unreachable *client.UnreachableError
	var other *client.NotUsherError
	switch {
	case errors.As(err, &unreachable):
		return fmt.Errorf(`%w
If no usher runs here, 'usher demo' starts one to try things with, and 'usher run'
one that serves. If it serves its API elsewhere, say so with --admin-address`, err)
	case errors.As(err, &other):
		return fmt.Errorf(`%w
It may be kube-proxy, which has the same port, or an older usher. If another usher
is meant, say where it serves its API with --admin-address`, err)
	}
	return err
}

// completeDemoEndpoints returns the Pods' names of the demo that runs, for
// completion by the shell.
func (f *askFlags) completeDemoEndpoints(cmd *cobra.Command) (names []string) {
	c, err := f.client()
	if err != nil {
		return nil
	}
	list, _ := c.DemoEndpoints(cmd.Context()) // nothing to complete, then
	for _, e := range list.Items {
		_, name, _ := strings.Cut(e.Pod, "/")
		names = append(names, name+"\t"+e.Does)
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
}

func (f *namespaceFlag) register(flags *pflag.FlagSet) {
	flags.StringVarP(&f.namespace, "namespace", "n", corev1.NamespaceDefault, "the `namespace` of names without one")
}

// serviceName returns "namespace/name" for a name that may have no namespace.
func (f *namespaceFlag) serviceName(name string) string {
	if name == "" || strings.Contains(name, "/") {
		return name
	}
	return f.namespace + "/" + name
}

// completeServices returns the Services of a namespace that are not in taken.
func (f *askFlags) completeServices(cmd *cobra.Command, namespace string, taken []string) (names []string) {
	c, err := f.client()
	if err != nil {
		return nil
	}
	list, _ := c.Services(cmd.Context(), client.ServiceQuery{Namespace: namespace}) // nothing to complete, then
	for _, s := range list.Items {
		if !slices.Contains(taken, s.Name) {
			names = append(names, s.Name+"\t"+string(s.State))
		}
	}
	return names
}
