// Package cli is shared by all commands: flags with a fixed set of values, groups of flags in --help, and suggestions
// for misspelled words. It also has exit codes, logs, output formats and manual pages.
package cli
