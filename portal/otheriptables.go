//go:build !linux

package portal

// iptablesMode needs Linux.
var iptablesMode = Mode{Name: iptablesName, Traits: iptablesTraits, Open: needsLinux}
