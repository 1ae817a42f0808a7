// Package redirect is the portal of all modes that change the destination of what is sent
// to a target to the port of a listener on this node, by rules that the kernel keeps.
//
// What is wanted is compared with what is installed, and what differs is put in, in one
// transaction. If the kernel does not take that, what it holds is read again, since
// others may have changed it; if it still does not, the rules that are to blame are found
// by trying, all others are put in, and the refused ones are tried again later. That is
// one machine for all modes (machine_linux.go); how rules are written to the kernel and read
// is a mode's [Backend]. There is one of each for an address family. To read all rules takes
// long if they are many: as long as the kernel tells of changes and has told of none
// ([kernel.Known]), or the backend can tell that there are none (Unchanged), Check does without.
//
//	portal_linux.go   the portal: ports of listeners, both families, what a
//	                  predecessor has left, watching
//	machine_linux.go  from what is wanted to what the kernel holds, for one family
//	refused.go        which rules does the kernel refuse?
//	setting.go        what rules depend on beside what is wanted
//	compare.go        what there is for people to see
package redirect
