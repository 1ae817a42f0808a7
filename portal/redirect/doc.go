// Package redirect is the portal of all modes whose rules make the kernel change the destination of packets for a
// target to the port of a listener on this node.
//
// It compares the wanted with the installed rules, and installs the differences in one transaction. If the kernel
// refuses this, it reads the installed rules again, since another program may have changed them. If the kernel still
// refuses, it finds the refused rules by trying, installs all others, and retries the refused ones later. The type
// machine does this for all modes; a mode's [Backend] writes rules to the kernel and reads them. Each address family
// has one machine and one Backend.
//
// Reading many rules takes long. Check does not read them while the kernel reports changes and has reported none
// ([kernel.Known]), or the backend detects that there are none (Unchanged).
//
//	portal_linux.go   the portal: ports of listeners, both families, a
//	                  predecessor's rules, events
//	machine_linux.go  makes the kernel hold the wanted rules of one family
//	refused.go        finds the rules that the kernel refuses
//	setting.go        the inputs of the kernel's rules in addition to portal.Rules
//	origin_linux.go   the source address that endpoints see (with aliases.go)
//	compare.go        compares wanted and installed rules for display
package redirect
