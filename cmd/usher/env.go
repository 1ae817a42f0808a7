package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/cmd/usher/cli"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/environ"
)

func newEnv() *cobra.Command {
	source := newConfigFlags()
	source.logs = logFlags{level: "warning", format: "text"}
	var namespace namespaceFlag
	var all bool
	output := string(environ.Shell)
	cmd := &cobra.Command{
		Use:   "env [SERVICE…]",
		Short: "Print the environment variables by which Pods find Services",
		Long: `Prints the environment variables that a kubelet gives to a Pod, so that a program
on this machine finds Services as it does there: WEB_SERVICE_HOST,
WEB_SERVICE_PORT, WEB_PORT_80_TCP_ADDR and so on.

Without arguments they are those of a Pod in --namespace: of all Services there,
and of the API server's, kubernetes in default. With arguments, of these Services
only; with -A, of all namespaces: of Services of the same name, that of --namespace
counts, or else the first.

Services come from an API server (--kubeconfig, --context) or from files
(--manifests). They have to be served for their addresses to lead anywhere: see
'usher run'.`,
		Example: `  eval "$(usher env --manifests examples/)"
  usher env --context kind-dev -n shop -o dotenv > .env
  usher env web shop/cart --manifests all.yaml -o json`,
		RunE: func(cmd *cobra.Command, names []string) error {
			if all && len(names) > 0 {
				return usagef("-A asks for all Services, and %s for some", strings.Join(names, ", "))
			}
			if err := source.oneSource(); err != nil {
				return err
			}
			if err := source.complete(cmd); err != nil {
				return err
			}
			services, err := source.Services(cmd.Context())
			if err != nil {
				return err
			}
			vars, err := variables(services, &namespace, names, all)
			if err != nil {
				return err
			}
			left, err := environ.Write(cmd.OutOrStdout(), environ.Format(output), vars)
			if len(left) > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "left out, since a shell has no variables of such names: %s\n", strings.Join(left, ", "))
			}
			return err
		},
	}
	flags := cmd.Flags()
	cli.Choice(flags, &output, "output", "o", "`format`: "+strings.Join(environ.Formats, ", "), environ.Formats...)
	flags.BoolVarP(&all, "all-namespaces", "A", false, "of all namespaces")
	namespace.register(flags)
	source.registerSource(flags)
	return cmd
}

// variables returns the variables that the command line asks for.
func variables(services []config.Service, namespace *namespaceFlag, names []string, all bool) ([]environ.Variable, error) {
	switch {
	case all:
		return environ.OfAll(services, namespace.namespace), nil
	case len(names) == 0:
		return environ.OfPod(services, namespace.namespace), nil
	}
	var out []environ.Variable
	for _, name := range names {
		ns, n, _ := strings.Cut(namespace.serviceName(name), "/")
		i := slices.IndexFunc(services, func(s config.Service) bool { return s.Name == types.NamespacedName{Namespace: ns, Name: n} })
		if i < 0 {
			return nil, fmt.Errorf("there is no Service %s/%s", ns, n)
		}
		vars := environ.Of(services[i])
		if len(vars) == 0 {
			return nil, fmt.Errorf("there are no variables for Service %s/%s: only one with a cluster IP has some", ns, n)
		}
		out = append(out, vars...)
	}
	return out, nil
}
