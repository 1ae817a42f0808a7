package fdstore

// KeeperVariable is set by a keeper for its usher process: the number of restarts and the reason for the last one
// ("restarts=3 last=signal: killed").
const KeeperVariable = "USHER_KEEPER"

// Variables are those by which a manager announces itself to a process. They are not for the processes that this one
// starts.
var Variables = []string{"NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID", "LISTEN_PIDFDID", "WATCHDOG_USEC", "WATCHDOG_PID", KeeperVariable}

// ConnectionsName is the name of a socket that a keeper passes to each usher process. Through it the process keeps
// copies of the sockets of open connections: see package proxy/stream. The socket itself is not stored.
const ConnectionsName = "connections"
