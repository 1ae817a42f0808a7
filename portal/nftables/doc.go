// Package nftables is the portal mode whose rules are in a table of nf_tables, which it accesses by netlink. Package
// redirect determines these rules.
//
//	layout.go          which chains and maps there are, and why
//	diff.go            the change from the installed to the wanted state
//	transact_linux.go  one transaction for the differences
//	read_linux.go      reads the kernel's state
//	encode_linux.go    keys, elements and rules in the kernel's form
//	backend_linux.go   one family: tests for features; reads, installs and tries rules
//	mode_linux.go      the mode; lists and removes leftovers
package nftables
