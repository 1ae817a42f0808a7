//go:build !linux

package portal

// addressMode needs Linux.
var addressMode = Mode{Name: addressName, Traits: addressTraits, Open: needsLinux}
