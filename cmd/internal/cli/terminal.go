package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/charmbracelet/colorprofile"
	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"sigs.k8s.io/yaml"

	"github.com/usherproxy/usher/cmd/internal/show"
)

// LogFlags configure the logs, which go to standard error.
type LogFlags struct {
	Level  string
	Format string
}

// Register registers the flags; format is the default of --log-format.
func (f *LogFlags) Register(flags *pflag.FlagSet, format string) {
	f.Level, f.Format = "info", format
	flags.Var(&Choices{Value: &f.Level, Allowed: []string{"debug", "info", "warning", "error"}, Also: isLogLevel}, "log-level", "Minimum `level` to log: debug, info, warning or error")
	Choice(flags, &f.Format, "log-format", "", "Log format: text, json, or auto (text on a terminal, else json)", "auto", "text", "json")
}

// Logger returns a logger that writes to out. Invalid values, which the flags reject, mean level info and format json.
func (f *LogFlags) Logger(out io.Writer) *logrus.Logger {
	log := logrus.New()
	log.SetOutput(out)
	if level, err := logrus.ParseLevel(f.Level); err == nil {
		log.SetLevel(level)
	}
	log.SetFormatter(&logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano})
	if f.Format == "text" || f.Format == "auto" && IsTerminal(out) {
		log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, TimestampFormat: "15:04:05.000"})
	}
	return log
}

// isLogLevel reports whether the logger accepts a level, including synonyms such as INFO, warn and trace.
func isLogLevel(level string) bool {
	_, err := logrus.ParseLevel(level)
	return err == nil
}

// IsTerminal reports whether out is a terminal.
func IsTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Colored returns a writer to out. It removes colors if out is not a terminal with colors, or NO_COLOR is set (see
// no-color.org).
func Colored(out io.Writer) io.Writer { return colorprofile.NewWriter(out, os.Environ()) }

// PrintLines prints lines that may contain colors.
func PrintLines(out io.Writer, lines []string) {
	out = Colored(out)
	for _, line := range lines {
		fmt.Fprintln(out, line)
	}
}

// TerminalWidth returns the number of columns of out, or 100 if it is not a terminal.
func TerminalWidth(out io.Writer) int {
	if file, ok := out.(*os.File); ok {
		if width, _, err := term.GetSize(int(file.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return 100
}

// wideColumns is the minimum width of wide tables on a terminal.
const wideColumns = 160

// TableWidth returns the maximum width of a table on out. It has no limit unless out is a terminal.
func TableWidth(out io.Writer, wide bool) int {
	switch {
	case !IsTerminal(out):
		return show.Unlimited
	case wide:
		return max(wideColumns, TerminalWidth(out))
	}
	return TerminalWidth(out)
}

// PrintDocument is PrintObject for one of several objects: in YAML, it prints a separator first.
func PrintDocument(out io.Writer, format string, v any) error {
	if format == "yaml" {
		fmt.Fprintln(out, "---")
	}
	return PrintObject(out, format, v)
}

// PrintObject prints v as JSON or YAML.
func PrintObject(out io.Writer, format string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err == nil && format == "yaml" {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", strings.TrimRight(string(text), "\n"))
	return err
}
