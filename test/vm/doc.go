// Package vm tests usher in kernels other than this machine's: Debian's for virtual machines, booted by QEMU, and
// Debian's User Mode Linux, which is a process. Any user can boot them, on any CPU (User Mode Linux only on amd64) and
// in a container: without a working KVM, QEMU emulates a CPU.
//
// [Kernels] lists the kernels, each in a certain state, and the checks for each. A machine has only an [Image] and a
// console: no disk, no network, no file of this machine. The image is an initramfs with copies of usher, the programs
// that usher and the checks call, the kernel's network modules (all of them, since a check may load the ones it needs),
// and the test binary of this package (go test -c). That binary is the first process: it prepares the kernel, runs the
// checks, prints a verdict for each, and halts. [Image.Boot] is the other side: it boots a kernel and collects the
// verdicts. Folder test calls it and turns each verdict into a test.
//
// Bad networks are networks of the machine itself that checks impair: netem and links taken down work in an emulator as
// anywhere. Packets are counted where they arrive at the node, so that usher's errors are not blamed on the network.
//
// An emulated CPU is about ten times slower than this one, so time bounds in the checks are generous. Checks that need
// no nf_tables, no old kernel and no other CPU run in User Mode Linux, where they take a sixth of the time.
package vm
