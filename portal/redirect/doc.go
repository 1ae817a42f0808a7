// Package redirect is the portal of all modes whose rules make the kernel change the destination of packets for a
// target to the port of a listener on this node.
//
// It compares the wanted with the installed rules, and puts the differences in, in one transaction. If the kernel
// refuses this, the installed rules are read again, since another program may have changed them. If it still refuses,
// the refused rules are found by trying, all others are put in, and the refused ones are tried again later. One machine
// does this for all modes (machine_linux.go); a mode's [Backend] writes rules to the kernel and reads them. There is
// one of each for an address family.
//
// Reading many rules takes long. Check does not read them while the kernel reports changes and has reported none
// ([kernel.Known]), or the backend detects that there are none (Unchanged).
//
//	portal_linux.go   the portal: ports of listeners, both families, a
//	                  predecessor's rules, watching
//	machine_linux.go  from the wanted to the kernel's rules, for one family
//	refused.go        finds the rules that the kernel refuses
//	setting.go        the other inputs of rules
//	compare.go        the comparison for people
package redirect
