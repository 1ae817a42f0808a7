// Package laptop implements the servers that 'kubectl usher exec' and 'connect' run alongside the proxy. With them,
// programs on a user's machine find Services by name: [Names] answers DNS queries, and [SOCKS] is a proxy. Each is a
// daemon.Server.
package laptop
