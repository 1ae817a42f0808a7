// Package daemon runs usher: it builds the parts of the process, and starts and stops
// them in order. It gets a [Config] with the values of flags and files. It parses nothing,
// prints nothing (it logs), and receives signals from its caller.
//
// [Daemon.Run] makes these parts, in this order, and then starts the source:
//
//	the source             source.go      files, or an API server
//	the portal             portal.go      with its lock
//	the proxy              daemon.go
//	HTTP                   servers.go     health, metrics, API
//	SOCKS and names        config.go      Config.SOCKS and Config.Names
//
// If a part cannot start, Run stops the parts before it, and the error names the part. Before the source has completed
// its initial sync, Run installs no rules or routes; it only configures connection tracking. Then it installs the
// portal's rules, or takes over those of the previous usher process (succession.go).
//
// When the daemon stops, /healthz first returns 503. Then usher accepts no more connections. Open connections move to
// the process that takes over; without one, they end, or usher resets them after the drain timeout. The portal's rules
// stay for a successor, or are removed last, since connections need them. With Config.RemoveRules, redirects are
// removed first. HTTP is served until the end or a takeover.
//
// The package also handles node port addresses (nodeports.go), settings of the kernel's
// connection tracking (conntrack.go) and memory use (memory.go). manager.go talks to the
// keeper or systemd, which keeps sockets for the next usher process.
package daemon
