//go:build !linux

package keeper

import (
	"fmt"
	"runtime"
)

// Run returns an error.
func Run(Options) (code int, err error) {
	return 0, fmt.Errorf("--keeper: not supported on %s, only on Linux; restart usher by other means", runtime.GOOS)
}
