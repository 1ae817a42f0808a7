// Package iptables is the portal mode that uses iptables rules. Package redirect determines these rules.
//
// The wanted state is computed by pure functions in separate files; the code that reads and writes it is thin. In
// reading order:
//
//	layout.go          which chains hold which rules, and why
//	dispatch.go        how a packet passes ten thousand rules in a few steps
//	spec.go, save.go   a rule as a value; parses the output of iptables-save
//	diff.go            the change from the installed to the wanted state
//	variant.go         iptables-nft or iptables-legacy?
//	command_linux.go   runs the commands, and interprets their errors
//	backend_linux.go   one family: tests for features; reads, installs and tries rules
//	legacy_linux.go    detects changes to the tables of iptables-legacy
//	notes_linux.go     records of objects that iptables-nft creates and leaves behind
//	mode_linux.go      the mode; lists and removes leftovers
package iptables
