package fdstore

// KeeperVariable is set by a keeper for its usher: how often it has started one again,
// and why the last time ("restarts=3 last=signal: killed").
const KeeperVariable = "USHER_KEEPER"

// Variables are those by which a manager tells a process that it is there. They are not
// for the processes that this one starts.
var Variables = []string{"NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID", "LISTEN_PIDFDID", "WATCHDOG_USEC", "WATCHDOG_PID", KeeperVariable}

// ConnectionsName is the name of a socket that a keeper passes to each usher process, by which it keeps copies of the
// sockets of open connections: see package proxy/stream. It is not kept.
const ConnectionsName = "connections"
