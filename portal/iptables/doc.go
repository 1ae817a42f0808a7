// Package iptables is the mode of portal whose rules are those of iptables; package redirect
// decides which they are.
//
// Deciding what has to be in the kernel is pure and in files of its own; reading
// and writing it is kept thin. In reading order:
//
//	layout.go          which chains hold which rules, and why so
//	dispatch.go        how a packet gets past ten thousand rules in few steps
//	spec.go, save.go   a rule as a value; reading what iptables-save prints
//	diff.go            from what is installed to what is wanted
//	variant.go         iptables-nft or iptables-legacy?
//	command_linux.go   running the commands, and what their complaints mean
//	backend_linux.go   one family's rules: probe, read, put in, try
//	notes_linux.go     what iptables-nft makes and leaves behind
//	mode_linux.go      the mode; what is left, listed and taken out
package iptables
