package fdstore

import "os"

// KeeperVariable is set by a keeper for its usher process. It has the number of restarts after crashes, and the Unix
// time and reason of the last crash ("restarts=3 at=1767323045 last=signal: killed").
const KeeperVariable = "USHER_KEEPER"

// Variables are those by which a manager announces itself to a process: see sd_notify(3), sd_listen_fds(3) and
// sd_watchdog_enabled(3). They are not for the processes that this one starts.
var Variables = []string{"NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID", "LISTEN_PIDFDID", "WATCHDOG_USEC", "WATCHDOG_PID", KeeperVariable}

// InPod reports whether a kubelet runs this process.
func InPod() bool { return os.Getenv("KUBERNETES_SERVICE_HOST") != "" }
