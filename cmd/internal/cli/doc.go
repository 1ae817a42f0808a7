// Package cli is shared by all commands: flags with a fixed set of values, suggestions for
// misspelled words, and groups of flags in --help.
package cli
