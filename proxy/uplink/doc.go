// Package uplink carries traffic of one network namespace to the network of this process and back: TCP
// connections and UDP datagrams.
//
// It reads IP packets from a TUN device, and terminates their connections in gVisor's userspace TCP/IP stack.
// It makes each connection again with sockets of this process. So programs there reach everything that this
// process can reach, under the same routing, VPN and firewall rules, and without any setup.
//
// It does not carry ICMP. A ping gets no answer, since the stack would answer it even if the pinged host did not exist.
// It does not handle Services.
package uplink
