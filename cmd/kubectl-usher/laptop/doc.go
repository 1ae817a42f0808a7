// Package laptop has the servers that 'kubectl usher exec' and 'connect' run beside the proxy, so that programs on
// a person's machine find Services by name: [Names] answers DNS queries, and [SOCKS] is a proxy. Each is a
// daemon.Server.
package laptop
