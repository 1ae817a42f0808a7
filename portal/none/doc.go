// Package none is the portal mode that changes nothing in the kernel: clients need the loopback address at which a
// Service listens. It needs no privileges and works on every system.
package none
