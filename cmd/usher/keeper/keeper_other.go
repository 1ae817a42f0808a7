//go:build !linux

package keeper

import (
	"fmt"
	"runtime"

	"github.com/sirupsen/logrus"
)

// Options configure a keeper.
type Options struct {
	Arguments           []string
	LogLevel, LogFormat string
	Log                 logrus.FieldLogger
}

// Run returns an error.
func Run(Options) (code int, err error) {
	return 0, fmt.Errorf("--keeper: not supported on %s, only on Linux; restart usher by other means", runtime.GOOS)
}

// Replaced returns false: there was no keeper.
func Replaced() (level, format string, is bool) { return "", "", false }

// Resume is never called.
func Resume(logrus.FieldLogger) (code int) { return 1 }
