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

// otherProgram is the program for users: its commands are not linked into the program that runs on nodes.
const otherProgram = "kubectl-usher"

// moved returns a hidden command for each command that only kubectl-usher has. It prints the command to run instead.
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

// connectFlags are the flags of connect that a user may try with run.
var connectFlags = []string{"via", "socks", "dns", "dns-domain", "dns-upstream"}

// flagError is cli.FlagError, but names the kubectl-usher command for a flag that only that program has.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return cli.FlagError(cmd, err)
	}
	name, path := unknown.GetSpecifiedName(), strings.Fields(cmd.CommandPath())[1:]
	switch {
	case cmd.Name() == "run" && slices.Contains(connectFlags, name):
		return cli.Usagef("--%[1]s is a flag of %[2]s: run '%[2]s connect'", name, otherProgram)
	case len(path) > 0 && slices.Contains(asking, path[0]) && slices.Contains(view.ClusterFlags, name):
		return cli.Usagef("--%[1]s is a flag of %[2]s: run '%[2]s %[3]s'", name, otherProgram, strings.Join(path, " "))
	}
	return cli.FlagError(cmd, err)
}

// asking are the query commands that both programs have.
var asking = []string{"get", "trace", "explain", "diagnose"}
