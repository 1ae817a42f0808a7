//go:build !linux

package frontend

import (
	"errors"
	"os"

	"github.com/usherproxy/usher/portal/handover"
)

// SocketNameOf is supported on Linux only.
func SocketNameOf(*os.File) (name string, err error) { return "", errors.ErrUnsupported }

// SocketFor returns false: there is no successor.
func SocketFor(int, string) (handover.Socket, bool) { return handover.Socket{}, false }
