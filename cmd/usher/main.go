// Command usher is a userspace service proxy for Kubernetes: the program that runs on nodes.
package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/serve"
	"github.com/usherproxy/usher/cmd/internal/view"
)

func main() {
	serve.LogKlog(nil) // drops client-go's messages until a command has a log
	root, args := newRoot(), os.Args[1:]
	os.Exit(cli.Execute(context.Background(), root, view.KindAndName(root, args)))
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "usher",
		Short: "A userspace service proxy for Kubernetes",
		Long: `usher is a userspace service proxy for Kubernetes. It accepts connections to the
cluster IPs of Services, tries endpoints until one answers, and forwards data in both
directions. A failed endpoint costs a retry, not a connection.

Start with 'usher demo', which has no prerequisites. To inspect a cluster, and to reach
its Services from a laptop, use 'kubectl usher'.`,
	}
	cli.SetUp(root)
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(newRun(), newDemo(), newCheck(), newReady(), newCleanup())
	root.AddCommand(view.Viewers{}.Commands()...)
	root.AddCommand(moved()...)
	cli.CompleteChoices(root)
	return root
}
