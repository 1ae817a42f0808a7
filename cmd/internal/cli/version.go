package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// The build sets Version and commit: see the Makefile. In a Git clone, commit is empty, since Go records the commit.
var (
	Version = "devel"
	commit  string
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintln(cmd.OutOrStdout(), VersionLine())
		},
	}
}

// VersionLine returns the version and commit of this program, and its operating system, architecture and Go version.
func VersionLine() string {
	return fmt.Sprintf("usher %s%s %s/%s %s", Version, revision(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}

// revision returns the commit that the binary was built from, if it is known.
func revision() string {
	from := cmp.Or(commit, setting("vcs.revision"))
	if from == "" {
		return ""
	}
	return " " + from[:min(12, len(from))]
}

// setting returns a build setting that Go recorded in the binary; "" means none.
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
