// Command kubectl-usher is the program for users. It shows the activity of the usher instances of a cluster, and makes
// Services reachable from the user's machine. kubectl runs it as its plugin 'kubectl usher'.
package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/fleet"
	"github.com/usherproxy/usher/cmd/internal/serve"
	"github.com/usherproxy/usher/cmd/internal/view"
	"github.com/usherproxy/usher/cmd/kubectl-usher/pods"
)

// completer is the name of the program that kubectl calls to complete arguments of the plugin
// (kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins).
const completer = "kubectl_complete-usher"

func main() {
	serve.LogKlog(nil) // until a command has a log
	root, args := newRoot(), os.Args[1:]
	if strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") == completer {
		args = append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	os.Exit(cli.Execute(context.Background(), root, view.KindAndName(root, args)))
}

// viewers are the commands that query the usher instances of a cluster.
var viewers = view.Viewers{Fleet: func(o fleet.Options) (fleet.Finder, error) { return pods.New(o) }}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:         "kubectl-usher",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl usher"},
		Short:       "Inspect usher on all nodes of a cluster, and reach its Services from this machine",
		Long: `Queries usher on all nodes of kubectl's cluster through the API server: the Services
it serves, what happens to connections, and problems. 'kubectl usher exec' runs a
command that reaches the cluster's Services like a Pod, and 'kubectl usher connect'
makes them reachable for all programs on this machine.

With --local, get, trace, explain, diagnose and top query the usher instance on this
machine, such as that of 'usher demo'.`,
	}
	cli.SetUp(root)
	asked := viewers.Commands()
	for _, cmd := range asked {
		nameInExamples(cmd)
	}
	root.AddCommand(asked...)
	root.AddCommand(newTop(), newDashboard(), newExec(), newExecInside(), newConnect(), newProxyEnv(), newEnv())
	cli.CompleteChoices(root)
	return root
}

// ownName matches calls of the program usher in examples.
var ownName = regexp.MustCompile(`(?m)^  usher `)

// nameInExamples makes the examples of a command that usher has, too, and of its subcommands call kubectl usher.
func nameInExamples(cmd *cobra.Command) {
	cmd.Example = ownName.ReplaceAllString(cmd.Example, "  kubectl usher ")
	for _, sub := range cmd.Commands() {
		nameInExamples(sub)
	}
}
