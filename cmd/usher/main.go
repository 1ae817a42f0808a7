// Command usher is a service proxy for Kubernetes that works in userspace.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/usherproxy/usher/cmd/usher/cli"
	"github.com/usherproxy/usher/cmd/usher/keeper"
)

func main() {
	if level, format, is := keeper.Replaced(); is { // of another version, perhaps, whose flags it had
		logs := logFlags{level: level, format: format}
		log, err := logs.logger(os.Stderr)
		if err != nil {
			logs = logFlags{level: "info", format: "json"}
			log, _ = logs.logger(os.Stderr) // these there are
		}
		os.Exit(keeper.Resume(log))
	}
	logKlog(nil) // until a command has a log
	root, args := newRoot(), os.Args[1:]
	switch strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") {
	case plugin:
		asPlugin(root)
	case pluginCompletion:
		asPlugin(root)
		args = append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	os.Exit(execute(context.Background(), root, args))
}

// execute runs the command line and returns the exit code: 0, 1 if the command
// failed, 2 if it was not understood; for exec, that of the command that it runs.
func execute(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(kindAndName(root, args))
	cmd, err := root.ExecuteContextC(ctx)
	var usage *usageError
	var exit *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(root.ErrOrStderr(), "usher: %v\nSee '%s --help'.\n", err, cmd.CommandPath())
		return 2
	case errors.Is(err, errSaid):
		return 1
	case errors.As(err, &exit):
		return exit.code
	}
	fmt.Fprintf(root.ErrOrStderr(), "usher: %v\n", err)
	return 1
}

// errSaid is the error of a command that has already told what is wrong.
var errSaid = errors.New("see above")

// exitError is the exit code of a program that was run, which has said itself what
// there is to say.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// usageError is a mistake in the command line.
type usageError struct{ error }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// noArgs is for commands that take flags only.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s takes no arguments, and got %q", cmd.Name(), args[0])
	}
	return nil
}

func newRoot() *cobra.Command {
	telling := false
	root := &cobra.Command{
		Use:   "usher",
		Short: "A service proxy for Kubernetes in userspace",
		Long: `usher brings connections to the cluster IPs of Kubernetes Services to their
endpoints, in userspace: it accepts each connection, tries endpoints until one
answers, and moves the bytes. A dead endpoint costs a retry and not a failed
connection.

Begin with 'usher demo', which needs nothing.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("there is no command %q%s", args[0], cli.DidYouMean(args[0], names(cmd)))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if telling {
				fmt.Fprintln(cmd.OutOrStdout(), versionLine())
				return nil
			}
			return cmd.Help()
		},
	}
	root.Flags().BoolVar(&telling, "version", false, "print the version")
	root.Flags().Bool(clusterFlag, false, "with get, trace, explain, diagnose and top: ask the ushers of kubectl's cluster")
	root.SetFlagErrorFunc(flagError)
	cli.SetUsage(root)
	root.AddCommand(newRun(), newExec(), newExecInside(), newDemo(), newDashboard(), newGet(), newTop(), newTrace(), newExplain(), newDiagnose(), newCheck(), newPlan(), newEnv(), newPortals(), newProxyEnv(), newReady(), newCleanup(), newManual(), newVersion())
	completeFlags(root)
	return root
}

// names returns the names of a command's subcommands, but for those that nobody calls.
func names(cmd *cobra.Command) (list []string) {
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			list = append(list, sub.Name())
		}
	}
	return list
}

// flagError says which flag is wrong, and which one may be meant.
func flagError(cmd *cobra.Command, err error) error {
	var choice *cli.ChoiceError
	var invalid *pflag.InvalidValueError
	var unknown *pflag.NotExistError
	switch {
	case errors.As(err, &choice) && errors.As(err, &invalid):
		return usagef("--%s: %w", invalid.GetFlag().Name, choice)
	case errors.As(err, &invalid):
		if said := cli.WrongValue(invalid); said != "" {
			return usagef("--%s: %s", invalid.GetFlag().Name, said)
		}
	case errors.As(err, &unknown):
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, "--"+f.Name)
			}
		})
		return usagef("%w%s", err, cli.DidYouMean("--"+unknown.GetSpecifiedName(), names))
	}
	return &usageError{err}
}

// version and commit are set by the build: see the Makefile. commit is empty where Go notes it, in a clone.
var (
	version = "devel"
	commit  string
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintln(cmd.OutOrStdout(), versionLine())
		},
	}
}

func versionLine() string {
	return fmt.Sprintf("usher %s%s %s/%s %s", version, revision(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}

// revision returns the commit that the binary was built from, if that is known.
func revision() string {
	from := cmp.Or(commit, setting("vcs.revision"))
	if from == "" {
		return ""
	}
	return " " + from[:min(12, len(from))]
}
