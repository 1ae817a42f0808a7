// Command usher is a service proxy for Kubernetes that works in userspace.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

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
	os.Exit(execute(context.Background(), newRoot(), os.Args[1:]))
}

// execute runs the command line and returns the exit code: 0, 1 if the command
// failed, 2 if it was not understood; for exec, that of the command that it runs.
func execute(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
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
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("there is no command %q", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.AddCommand(newRun(), newExec(), newExecInside(), newDemo(), newGet(), newTop(), newTrace(), newExplain(), newCheck(), newPlan(), newEnv(), newPortals(), newProxyEnv(), newCleanup(), newVersion())
	return root
}

// version is set by the build: see the Makefile.
var version = "devel"

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintf(cmd.OutOrStdout(), "usher %s%s %s/%s %s\n", version, revision(), runtime.GOOS, runtime.GOARCH, runtime.Version())
		},
	}
}

// revision returns the commit that Go noted in the binary, if it did.
func revision() string {
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return " " + s.Value[:min(12, len(s.Value))]
		}
	}
	return ""
}
