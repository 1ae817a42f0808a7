package main

import (
	"regexp"
	"slices"

	"github.com/spf13/cobra"
)

// The names under which kubectl finds usher as its plugin, and asks it what to complete
// (kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins).
const (
	plugin           = "kubectl-usher"
	pluginCompletion = "kubectl_complete-usher"
)

// pluginCommands are those that make sense where a cluster is looked at from outside.
var pluginCommands = []string{"exec", execInside, "dashboard", "get", "top", "trace", "explain", "diagnose", "version"}

// asPlugin makes of usher's commands those of kubectl's plugin: they ask the ushers of kubectl's cluster, and all
// that is about the node they run on is left out.
func asPlugin(root *cobra.Command) {
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl usher"}
	root.Long = `Asks the ushers of all nodes of kubectl's cluster, through its API server: what they
serve, what becomes of connections, and what is wrong. 'kubectl usher exec' runs a
command that reaches the cluster's Services as a Pod would.`
	_ = root.Flags().MarkHidden(clusterFlag) // it is so without
	for _, cmd := range root.Commands() {
		if !slices.Contains(pluginCommands, cmd.Name()) {
			root.RemoveCommand(cmd)
		}
	}
	inPlugin(root)
}

// ownName finds where examples call usher.
var ownName = regexp.MustCompile(`(?m)^  usher `)

// inPlugin gives a command and its subcommands the plugin's defaults, and examples that can be typed.
func inPlugin(cmd *cobra.Command) {
	cmd.Example = ownName.ReplaceAllString(cmd.Example, "  kubectl usher ")
	if cmd.Flags().Lookup(clusterFlag) != nil {
		setDefault(cmd.Flags(), clusterFlag, "true")
	}
	for _, sub := range cmd.Commands() {
		inPlugin(sub)
	}
}
