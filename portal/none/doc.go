// Package none is the portal mode that changes nothing in the kernel: clients must connect to the loopback address on
// which usher listens for a Service. It needs no privileges and works on every system.
package none
