//go:build !linux

package uplink

import (
	"errors"
	"os"
)

// Uplink requires Linux and is not implemented elsewhere.
type Uplink struct{}

// Start returns an error.
func Start(device *os.File, _ uint32) (*Uplink, error) {
	return nil, errors.New("an uplink requires Linux")
}

// Close does nothing.
func (u *Uplink) Close() {}
