// Package nftables is the mode of portal whose rules are in a table of nf_tables, which it
// speaks to by netlink; package redirect decides which they are.
//
//	layout.go          which chains and maps there are, and why so
//	diff.go            from what is installed to what is wanted
//	transact_linux.go  one transaction for what differs
//	read_linux.go      what the kernel holds
//	encode_linux.go    keys, elements and rules as the kernel has them
//	backend_linux.go   one family's rules: probe, read, put in, try
//	mode_linux.go      the mode; what is left, listed and taken out
package nftables
