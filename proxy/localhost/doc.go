// Package localhost makes servers that listen on this machine's loopback addresses available in another
// network namespace, on its loopback addresses, at the same ports.
//
// It polls /proc/net for the ports with listeners, and has a dedicated proxy that serves each as a Service. The
// Service's cluster IP is the loopback address there, and its only endpoint is the same address here. If a port already
// has a listener there, that keeps it: as on one machine, the first listener has the port.
package localhost
