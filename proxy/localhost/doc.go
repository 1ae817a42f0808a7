// Package localhost makes the servers that listen on this machine's loopback
// addresses answer in another network namespace, on that one's loopback
// addresses, at the same ports.
//
// It reads time and again from /proc/net which ports somebody listens on, and has
// a proxy of its own that serves each as if it were a Service whose cluster IP is
// the loopback address there, and whose only endpoint is the same address here.
// A port at which somebody listens there stays his: as on one machine, who is
// first has it.
package localhost
