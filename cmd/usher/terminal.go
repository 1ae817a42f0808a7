package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/charmbracelet/colorprofile"
	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/usherproxy/usher/cmd/usher/cli"
	"github.com/usherproxy/usher/cmd/usher/show"
)

// logFlags say how logs are written. They go to standard error.
type logFlags struct {
	level  string
	format string
}

func (f *logFlags) register(flags *pflag.FlagSet, format string) {
	f.level, f.format = "info", format
	flags.Var(&cli.Choices{Value: &f.level, Allowed: []string{"debug", "info", "warning", "error"}, Also: isLogLevel}, "log-level", "least serious `level` that is logged: debug, info, warning or error")
	cli.Choice(flags, &f.format, "log-format", "", "text, json, or auto: text on a terminal and json elsewhere", "auto", "text", "json")
}

// logger returns a logger that writes to out.
func (f *logFlags) logger(out io.Writer) (*logrus.Logger, error) {
	level, err := logrus.ParseLevel(f.level)
	if err != nil {
		return nil, usagef("--log-level: %q is not one of debug, info, warning, error", f.level)
	}
	log := logrus.New()
	log.SetOutput(out)
	log.SetLevel(level)
	text := &logrus.TextFormatter{FullTimestamp: true, TimestampFormat: "15:04:05.000"}
	switch {
	case f.format == "json", f.format == "auto" && !isTerminal(out):
		log.SetFormatter(&logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano})
	case f.format == "text", f.format == "auto":
		log.SetFormatter(text)
	default:
		return nil, usagef("--log-format: %q is not one of auto, text, json", f.format)
	}
	return log, nil
}

// isLogLevel reports whether the logger knows a level: INFO, warn and trace are some, too.
func isLogLevel(level string) bool {
	_, err := logrus.ParseLevel(level)
	return err == nil
}

// isTerminal reports whether out is a terminal.
func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// coloured returns a writer to out that takes colours out unless out is a terminal
// that has them, and NO_COLOR is not set (see no-color.org).
func coloured(out io.Writer) io.Writer { return colorprofile.NewWriter(out, os.Environ()) }

// printLines prints lines that may have colours.
func printLines(out io.Writer, lines []string) {
	out = coloured(out)
	for _, line := range lines {
		fmt.Fprintln(out, line)
	}
}

// terminalWidth returns how many columns out has; 100 if it is no terminal.
func terminalWidth(out io.Writer) int {
	if file, ok := out.(*os.File); ok {
		if width, _, err := term.GetSize(int(file.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return 100
}

// wideColumns is for how wide a terminal wide tables are made, at least.
const wideColumns = 160

// tableWidth returns how wide a table on out may be. A program that reads it gets all of it.
func tableWidth(out io.Writer, wide bool) int {
	switch {
	case !isTerminal(out):
		return show.Unlimited
	case wide:
		return max(wideColumns, terminalWidth(out))
	}
	return terminalWidth(out)
}
