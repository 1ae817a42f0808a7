// Package redirect implements the portal for modes whose kernel rules redirect a target's packets to a local listener
// (iptables, nftables).
//
// It compares the wanted with the installed rules, and installs the differences in one transaction (iptables: one for
// each table). If the kernel refuses this, it reads the installed rules again, since another program may have changed
// them. If the kernel still refuses, it finds the refused rules by trying, installs all others, and retries the refused
// ones later. The type machine does this for all modes; a mode's [Backend] writes rules to the kernel and reads them.
// Each address family has one machine and one Backend.
//
// Reading many rules takes long. Check reads them after an event of the kernel, 2 min after they were last read, and
// each time if there are no events ([kernel.Known]). It skips that if the backend detects that nothing has changed
// (Unchanged).
//
//	portal_linux.go   the portal: ports of listeners, both families, a
//	                  predecessor's rules, events
//	machine_linux.go  makes the kernel hold the wanted rules of one family
//	refused.go        finds the rules that the kernel refuses
//	setting.go        the inputs of the kernel's rules in addition to portal.Rules
//	origin_linux.go   the source address that endpoints see (with aliases.go)
//	compare.go        compares wanted and installed rules for display
package redirect
