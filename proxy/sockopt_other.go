//go:build !linux

package proxy

import (
	"net/netip"
	"time"
)

func setListenerOptions(uintptr, netip.Addr, time.Duration) error { return nil }

// openFilesLimit returns a number that common systems allow.
func openFilesLimit() int64 { return 10240 }
