// Package none is the mode of portal for those who may change nothing in the kernel: clients
// are told the loopback address at which a Service listens. It works on every system.
package none
