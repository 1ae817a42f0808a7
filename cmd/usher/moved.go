package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/view"
)

// otherProgram is the program for people: what it has is not linked into the one that runs on nodes.
const otherProgram = "kubectl-usher"

// moved returns a hidden command for each that only kubectl-usher has, which says what to run.
func moved() (list []*cobra.Command) {
	for _, name := range []string{"exec", "connect", "env", "proxy-env", "top", "dashboard"} {
		list = append(list, &cobra.Command{
			Use:                name,
			Hidden:             true,
			DisableFlagParsing: true,
			RunE: func(cmd *cobra.Command, args []string) error {
				if name == "top" && !slices.ContainsFunc(args, isNode) {
					args = append(args[:len(args):len(args)], "--local")
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "usher: %s is a command of %s: run '%s'\n", name, otherProgram, strings.Join(append([]string{otherProgram, name}, args...), " "))
				return &cli.ExitError{Code: 2}
			},
		})
	}
	return list
}

func isNode(arg string) bool { return strings.HasPrefix(arg, "--node") }

// Flags that a user may try with usher, and that commands of kubectl-usher have: connect, and those that ask.
var (
	connectFlags = []string{"via", "socks", "dns", "dns-domain", "dns-upstream"}
	clusterFlags = append([]string{"cluster"}, view.ClusterFlags...)
)

// flagError is cli.FlagError, but says of flags that kubectl-usher has what to run.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return cli.FlagError(cmd, err)
	}
	name, path := unknown.GetSpecifiedName(), strings.Fields(cmd.CommandPath())[1:]
	switch {
	case cmd.Name() == "run" && slices.Contains(connectFlags, name):
		return cli.Usagef("--%[1]s is a flag of %[2]s: run '%[2]s connect'", name, otherProgram)
	case len(path) > 0 && slices.Contains(asking, path[0]) && slices.Contains(clusterFlags, name):
		return cli.Usagef("--%[1]s is a flag of %[2]s: run '%[2]s %[3]s'", name, otherProgram, strings.Join(path, " "))
	}
	return cli.FlagError(cmd, err)
}

// asking are the commands that both programs have.
var asking = []string{"get", "trace", "explain", "diagnose"}
