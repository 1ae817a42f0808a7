package cli

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// newManual returns a hidden command for building packages: see deploy/release.
func newManual() *cobra.Command {
	return &cobra.Command{
		Use:    "manual FOLDER",
		Short:  "Write manual pages to a folder, one per command",
		Hidden: true,
		Args:   Takes(1, 1, "one FOLDER"),
		RunE: func(cmd *cobra.Command, args []string) error {
			date, _, _ := strings.Cut(setting("vcs.time"), "T")
			return EachCommand(cmd.Root(), func(c *cobra.Command) error {
				name, text := ManualPage(c, "usher "+Version, date)
				return os.WriteFile(filepath.Join(args[0], name+".1"), []byte(text), 0o644)
			})
		},
	}
}
