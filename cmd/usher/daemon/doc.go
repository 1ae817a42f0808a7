// Package daemon is a running usher: what it is made of, and in which order that
// starts and stops. It is given a [Config], which says what flags and files said, and
// knows of neither: it parses nothing, prints nothing (it logs), and asks for no
// signals but is handed them.
//
// [Daemon.Run] starts, in this order,
//
//	the source             source.go      files, or an API server
//	the portal             portal.go      with the lock that goes with it
//	the proxy              daemon.go
//	HTTP                   servers.go     health, metrics, API
//	SOCKS and names        config.go      the servers that Config brings
//
// and stops it the other way round. If a part cannot be had, what was started before
// it is stopped, and the error says which it is. Nothing is changed in the kernel
// before the source has its first full picture; then the portal's rules are put in,
// or those of the usher that was there before are taken over (succession.go).
//
// On a stop /healthz says so first; then nothing is accepted any more, and
// connections that are open end, or are broken when the time for that is over. The
// portal's rules stay for a successor, or go last, since connections need them. HTTP
// is served to the end.
//
// What a node has beside that: where its node ports are (nodeports.go), settings of
// the kernel's connection tracking (conntrack.go), and how much memory is kept
// (memory.go). What the keeper, or systemd, is told, and keeps for the next usher: manager.go.
package daemon
