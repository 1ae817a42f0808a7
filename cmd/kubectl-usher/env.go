package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/serve"
	"github.com/usherproxy/usher/cmd/internal/view"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/environ"
)

func newEnv() *cobra.Command {
	source := serve.New()
	source.Logs = cli.LogFlags{Level: "warning", Format: "text"}
	var namespace view.NamespaceFlag
	var all bool
	output := string(environ.Shell)
	cmd := &cobra.Command{
		Use:   "env [SERVICE…]",
		Short: "Print the environment variables that Pods get for Services",
		Long: `Prints the environment variables that kubelet sets in Pods, so that a program on this
machine finds Services like in a Pod: WEB_SERVICE_HOST, WEB_SERVICE_PORT,
WEB_PORT_80_TCP_ADDR and so on.

By default, it prints the variables of a Pod in --namespace: for all Services there,
and for the API server (kubernetes in default). With arguments, it prints those of the
given Services only; with -A, those of all namespaces. If Services in several
namespaces have the same name, the one in --namespace has precedence, then the first.

Services come from an API server (--kubeconfig, --context) or from files
(--manifests). The addresses work only while the Services are served: see
'kubectl usher connect'.`,
		Example: `  eval "$(kubectl usher env --manifests examples/)"
  kubectl usher env --context kind-dev -n shop -o dotenv > .env
  kubectl usher env web shop/cart --manifests all.yaml -o json`,
		RunE: func(cmd *cobra.Command, names []string) error {
			if all && len(names) > 0 {
				return cli.Usagef("-A selects all Services and cannot be combined with names: %s", strings.Join(names, ", "))
			}
			if err := source.OneSource(); err != nil {
				return err
			}
			source.Cluster.AsUser = true
			if err := source.Complete(cmd); err != nil {
				return err
			}
			if !cmd.Flags().Changed("namespace") {
				var err error
				if namespace.Namespace, err = source.KubeNamespace(); err != nil {
					return err
				}
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
				fmt.Fprintf(cmd.ErrOrStderr(), "omitted, because these are not valid shell variable names: %s\n", strings.Join(left, ", "))
			}
			return err
		},
	}
	flags := cmd.Flags()
	cli.Choice(flags, &output, "output", "o", "Output `format`: "+strings.Join(environ.Formats, ", "), environ.Formats...)
	flags.BoolVarP(&all, "all-namespaces", "A", false, "Select Services in all namespaces")
	namespace.Register(flags)
	source.RegisterSource(flags)
	return cmd
}

// variables returns the environment variables that the command line selects.
func variables(services []config.Service, namespace *view.NamespaceFlag, names []string, all bool) ([]environ.Variable, error) {
	switch {
	case all:
		return environ.OfAll(services, namespace.Namespace), nil
	case len(names) == 0:
		return environ.OfPod(services, namespace.Namespace), nil
	}
	var out []environ.Variable
	for _, name := range names {
		ns, n, _ := strings.Cut(namespace.ServiceName(name), "/")
		i := slices.IndexFunc(services, func(s config.Service) bool { return s.Name == types.NamespacedName{Namespace: ns, Name: n} })
		if i < 0 {
			return nil, fmt.Errorf("there is no Service %s/%s", ns, n)
		}
		vars := environ.Of(services[i])
		if len(vars) == 0 {
			return nil, fmt.Errorf("no variables for Service %s/%s: only Services with a cluster IP have them", ns, n)
		}
		out = append(out, vars...)
	}
	return out, nil
}
