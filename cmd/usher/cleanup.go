package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/usher/daemon"
	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/portal/modes"
)

func newCleanup() *cobra.Command {
	var logs cli.LogFlags
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything that usher installed on this node",
		Long: `Removes every rule, chain, route and interface that any usher process installed on this
node, in every portal mode. Rules of other programs are not changed; unreadable rules
are an error. Stop usher first.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cleanup(cmd, logs) },
	}
	logs.Register(cmd.Flags(), "auto")
	return cmd
}

func cleanup(cmd *cobra.Command, logs cli.LogFlags) error {
	if kernel.NeedNetAdmin() != nil {
		return errors.New("CAP_NET_ADMIN is missing: run as root, or give the process this capability")
	}
	removed, err := removeAll(cmd.Context(), logs.Logger(cmd.ErrOrStderr()))
	if err == nil && len(removed) == 0 {
		fmt.Fprintln(cmd.OutOrStdout(), "Nothing to remove.")
	}
	for _, what := range removed {
		fmt.Fprintln(cmd.OutOrStdout(), "removed", what)
	}
	return err
}

// removeLeft removes the rules that remain when a keeper stops and no usher process runs that could remove them. If
// another usher instance has taken over, it removes nothing.
func removeLeft(log logrus.FieldLogger) error {
	removed, err := removeAll(context.Background(), log)
	for _, what := range removed {
		log.WithField("removed", what).Info("Removed a part of the portal")
	}
	if errors.Is(err, handover.ErrLocked) {
		return nil
	}
	return err
}

// removeAll removes everything that any usher process installed on this node, and returns a line for each removed kind.
// It fails if an usher process holds the lock of the portals.
func removeAll(ctx context.Context, log logrus.FieldLogger) (removed []string, err error) {
	lock, err := daemon.Lock(log, nil)
	if errors.Is(err, handover.ErrLocked) {
		return nil, fmt.Errorf("%w; stop it first, or it restores its rules", err)
	}
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	return modes.Cleanup(ctx, log)
}
