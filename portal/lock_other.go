//go:build !linux

package portal

import "errors"

// ErrLocked is what Lock's error wraps when another process has the lock.
var ErrLocked = errors.New("another usher manages the portals of this system")

// Lock has nothing to lock: other systems have no portal that installs rules.
func Lock() (unlock func(), err error) { return func() {}, nil }
