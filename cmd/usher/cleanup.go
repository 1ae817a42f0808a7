package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/usher/daemon"
	"github.com/usherproxy/usher/portal/modes"
)

func newCleanup() *cobra.Command {
	var logs cli.LogFlags
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything that usher ever installed on this node",
		Long: `Removes every rule, chain, route and interface that usher installed on this node, in every
portal mode, whichever process did it and however that ended. What others
installed is not touched; what cannot be read is an error. Stop usher before.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cleanup(cmd, logs) },
	}
	logs.Register(cmd.Flags(), "auto")
	return cmd
}

func cleanup(cmd *cobra.Command, logs cli.LogFlags) error {
	log, err := logs.Logger(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	lock, err := daemon.Lock(log, nil)
	if err != nil {
		return fmt.Errorf("%w; stop it first, or it puts its rules back", err)
	}
	defer lock.Release()
	removed, err := modes.Cleanup(cmd.Context(), log)
	if err == nil && len(removed) == 0 {
		fmt.Fprintln(cmd.OutOrStdout(), "There was nothing to remove.")
	}
	for _, what := range removed {
		fmt.Fprintln(cmd.OutOrStdout(), "removed", what)
	}
	return err
}
