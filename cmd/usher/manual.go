package main

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/usherproxy/usher/cmd/usher/cli"
)

// newManual is for those who make packages: see deploy/release.
func newManual() *cobra.Command {
	return &cobra.Command{
		Use:    "manual FOLDER",
		Short:  "Write the manual pages into a folder, one for each command",
		Hidden: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("manual takes the folder for the pages, and got %q", args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			date, _, _ := strings.Cut(setting("vcs.time"), "T")
			return cli.EachCommand(cmd.Root(), func(c *cobra.Command) error {
				name, text := cli.ManualPage(c, "usher "+version, date)
				return os.WriteFile(filepath.Join(args[0], name+".1"), []byte(text), 0o644)
			})
		},
	}
}

// setting returns what Go noted in the binary of how it was built; empty is nothing.
func setting(key string) string {
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
