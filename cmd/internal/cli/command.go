package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/usherproxy/usher/cmd/internal/show"
)

// Execute runs the command line, prints its error, and returns the exit code. It is 0, 1 if the command failed, 2 for a
// usage error, or that of an ExitError.
func Execute(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	var usage *UsageError
	var exit *ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(root.ErrOrStderr(), "usher: %v\nSee '%s --help'.\n", err, cmd.CommandPath())
		return 2
	case errors.Is(err, ErrSaid):
		return 1
	case errors.As(err, &exit):
		return exit.Code
	}
	fmt.Fprintf(root.ErrOrStderr(), "usher: %v\n", err)
	return 1
}

// ErrSaid is the error of a command that has already printed the reason.
var ErrSaid = errors.New("see above")

// ExitError makes Execute return Code and print nothing, for example after a program that has printed its own errors.
type ExitError struct{ Code int }

// Error implements error.
func (e *ExitError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// UsageError is an error in the command line.
type UsageError struct{ error }

// Usage returns a UsageError for err.
func Usage(err error) error { return &UsageError{err} }

// Usagef returns a UsageError with a text.
func Usagef(format string, args ...any) error { return Usage(fmt.Errorf(format, args...)) }

// NoArgs is for commands that accept only flags.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usagef("%s takes no arguments, got %q", cmd.Name(), args[0])
	}
	return nil
}

// Takes is for commands that accept from least to most arguments. what describes them in the error.
func Takes(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return Usagef("%s takes %s, got %s", cmd.Name(), what, show.Plural(len(args), "argument"))
		}
		return nil
	}
}

// SetUp makes root the root command of a program with subcommands. Without a subcommand, it prints its help or version.
func SetUp(root *cobra.Command) {
	version := false
	root.SilenceUsage, root.SilenceErrors = true, true
	root.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return Usagef("unknown command %q%s", args[0], DidYouMean(args[0], Names(cmd)))
		}
		return nil
	}
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if version {
			fmt.Fprintln(cmd.OutOrStdout(), VersionLine())
			return nil
		}
		return cmd.Help()
	}
	root.Flags().BoolVar(&version, "version", false, "Print the version")
	root.SetFlagErrorFunc(FlagError)
	setUsage(root)
	root.AddCommand(newManual(), newVersion())
}

// Names returns the names of a command's subcommands, except hidden ones.
func Names(cmd *cobra.Command) (list []string) {
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			list = append(list, sub.Name())
		}
	}
	return list
}

// FlagError returns a UsageError that names the wrong flag or value, and suggests similar ones.
func FlagError(cmd *cobra.Command, err error) error {
	var choice *ChoiceError
	var invalid *pflag.InvalidValueError
	var unknown *pflag.NotExistError
	switch {
	case errors.As(err, &choice) && errors.As(err, &invalid):
		return Usagef("--%s: %w", invalid.GetFlag().Name, choice)
	case errors.As(err, &invalid):
		if said := WrongValue(invalid); said != "" {
			return Usagef("--%s: %s", invalid.GetFlag().Name, said)
		}
		return Usagef("--%s: invalid value %q: %w", invalid.GetFlag().Name, invalid.GetValue(), invalid.Unwrap())
	case errors.As(err, &unknown):
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, "--"+f.Name)
			}
		})
		return Usagef("%w%s", err, DidYouMean("--"+unknown.GetSpecifiedName(), names))
	}
	return Usage(err)
}

// CompleteChoices enables shell completion for the flags of type Choices of a command and its subcommands.
func CompleteChoices(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if c, ok := f.Value.(*Choices); ok {
			_ = cmd.RegisterFlagCompletionFunc(f.Name, c.Complete) // it has none yet
		}
	})
	for _, sub := range cmd.Commands() {
		CompleteChoices(sub)
	}
}

// SetDefault changes the default of a flag. It panics if value is not valid.
func SetDefault(flags *pflag.FlagSet, name, value string) {
	f := flags.Lookup(name)
	f.DefValue = value
	if err := f.Value.Set(value); err != nil {
		panic(err)
	}
}

// DefaultAdminAddress is the default of --admin-address, where usher serves its API and commands query it.
const DefaultAdminAddress = "127.0.0.1:10249"
