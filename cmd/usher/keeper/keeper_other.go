//go:build !linux

package keeper

import (
	"fmt"
	"runtime"

	"github.com/sirupsen/logrus"
)

// Run returns an error.
func Run(Options) (code int, err error) {
	return 0, fmt.Errorf("--keeper: not supported on %s, only on Linux; restart usher by other means", runtime.GOOS)
}

// Resume returns false: there was no keeper.
func Resume(func(level, format string) logrus.FieldLogger, func(logrus.FieldLogger) error) (code int, is bool) {
	return 0, false
}
