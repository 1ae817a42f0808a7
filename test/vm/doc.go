// Package vm tests usher in kernels other than this machine's: Debian's for
// virtual machines, booted by QEMU, and Debian's User Mode Linux, which is a process.
// Any user can boot them, on any processor (the latter on amd64) and in a container: where there
// is no KVM that works, QEMU emulates a processor.
//
// [Kernels] are the kernels, each in a certain state, and what is checked in each.
// A machine has nothing but an [Image] and a console: no disk, no network, no file
// of this machine. The image is an initramfs that holds copies: of usher, of the
// programs that it and the checks call, of the kernel's modules for the network
// (all of them: a check may load those that it needs), and of the test binary of
// this package (go test -c). That is the first process: it gets the kernel ready,
// runs the checks, prints a verdict for each, and halts. [Image.Boot] is the other
// side: it boots a kernel and collects the verdicts. Folder test does that, and
// makes each verdict a test.
//
// A machine has bad networks if its own are made bad: netem and links that are taken
// down are as good in an emulator as anywhere. What usher carries there is counted where
// it arrives at the node, so that the network is to blame for nothing that usher did.
//
// An emulated processor is some ten times slower than this one, so bounds on time in the
// checks are generous. What does not need nf_tables, an old kernel or another processor is
// checked in User Mode Linux, where it takes a sixth of the time.
package vm
