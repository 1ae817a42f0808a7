// Package cli is what commands share that take flags and tell about them: values that are one of a
// few words, what may be meant by another word, and groups of flags in --help.
package cli
