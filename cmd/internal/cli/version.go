package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Version is usher's. With commit it is set by the build: see the Makefile. commit is empty where Go notes it, in a clone.
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

// VersionLine returns the version, the commit and the system that this program was built from and for.
func VersionLine() string {
	return fmt.Sprintf("usher %s%s %s/%s %s", Version, revision(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}

// revision returns the commit that the binary was built from, if that is known.
func revision() string {
	from := cmp.Or(commit, setting("vcs.revision"))
	if from == "" {
		return ""
	}
	return " " + from[:min(12, len(from))]
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
