//go:build !linux

package iptables

import (
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
)

// Mode needs Linux.
var Mode = portal.Mode{Name: name, Traits: traits, Open: kernel.NeedsLinux}
