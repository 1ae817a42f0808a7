// Package address is the mode of portal in which VIPs become local addresses of the node, so
// that the kernel itself brings what is sent to them to listeners at VIP:port. It needs no
// netfilter.
package address
