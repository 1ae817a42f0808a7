package main

import (
	"io"
	"os"

	"github.com/charmbracelet/colorprofile"
	"golang.org/x/term"
)

// coloured returns a writer to out that takes colours out unless out is a terminal
// that has them, and NO_COLOR is not set (see no-color.org).
func coloured(out io.Writer) io.Writer { return colorprofile.NewWriter(out, os.Environ()) }

// terminalWidth returns how many columns out has; 100 if it is no terminal.
func terminalWidth(out io.Writer) int {
	if file, ok := out.(*os.File); ok {
		if width, _, err := term.GetSize(int(file.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return 100
}
