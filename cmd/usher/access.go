package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"github.com/usherproxy/usher/proxy/accesslog"
	"github.com/usherproxy/usher/proxy/trace"
)

// accessFlags say where the access log goes.
type accessFlags struct {
	path   string
	format string
}

func (f *accessFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.path, "access-log", "", "`file` to which a line is appended for each connection that has ended; - is standard output, empty means none")
	flags.StringVar(&f.format, "access-log-format", string(accesslog.JSON), "how these lines are written: "+strings.Join(accesslog.Formats, " or "))
}

// check returns an error that names the flag that is wrong.
func (f *accessFlags) check() error {
	if !slices.Contains(accesslog.Formats, f.format) {
		return usagef("--access-log-format: %q is none of %s", f.format, strings.Join(accesslog.Formats, ", "))
	}
	return nil
}

// open returns the access log, or nil if none is wanted.
func (f *accessFlags) open(t *trace.Log, out io.Writer, log logrus.FieldLogger) (*accesslog.Log, error) {
	if f.path == "" {
		return nil, nil
	}
	l, err := accesslog.New(t, accesslog.Options{Path: f.path, Out: out, Format: accesslog.Format(f.format), Log: log})
	if err != nil {
		return nil, fmt.Errorf("--access-log: %w", err)
	}
	return l, nil
}
