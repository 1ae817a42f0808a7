// Package uplink carries what is sent in one network namespace to the network of
// this process, and what comes back: TCP connections and UDP datagrams.
//
// It reads IP packets from a TUN device, ends their connections in a TCP/IP stack
// in userspace, gVisor's, and makes each connection anew with sockets of this
// process. So whatever this process can reach can be reached from there, under the
// same rules of routing, VPN and firewall, and nothing has to be set up for it.
//
// It does not carry ICMP: a ping is not answered by the one that is asked, so it is
// not answered at all. It knows nothing of Services.
package uplink
