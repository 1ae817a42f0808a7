// Package localhost makes servers that listen on this machine's loopback addresses available in another
// network namespace, on its loopback addresses, at the same ports.
//
// It polls /proc/net for the ports with listeners, and has a dedicated proxy that serves each as a Service.
// The Service's cluster IP is the loopback address there, and its only endpoint is the same address here. A
// port that already has a listener there stays with it: as on one machine, the first one has it.
package localhost
