// Package vm tests usher in kernels other than this machine's: Debian's
// user-mode-linux, which boots a Linux kernel as an ordinary process within
// seconds, with this machine's files as its own.
//
// [Kernels] are the kernels and what is checked in each. The test binary of this
// package (go test -c) is the first and only process of such a kernel: it gets
// the kernel ready, runs the checks, prints a verdict for each, and halts.
// [Boot] is the other side: it boots a kernel and collects the verdicts. Folder
// test does that, and makes each verdict a test.
package vm
