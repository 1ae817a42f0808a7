//go:build !linux

package portal

// nftablesMode needs Linux.
var nftablesMode = Mode{Name: nftablesName, Traits: nftablesTraits, Open: needsLinux}
