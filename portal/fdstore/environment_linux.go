package fdstore

import (
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// FirstFD is the first descriptor that a manager passes (SD_LISTEN_FDS_START).
const FirstFD = 3

// Connect returns a connection to the manager that the environment names, or nil if it names none.
func Connect() (*net.UnixConn, error) {
	address := os.Getenv("NOTIFY_SOCKET")
	if address == "" {
		return nil, nil
	}
	return net.DialUnix("unixgram", nil, &net.UnixAddr{Name: address, Net: "unixgram"})
}

// Watchdog returns the interval within which the manager expects a sign of life, or 0 if it expects none.
func Watchdog() time.Duration {
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || !forThisProcess("WATCHDOG_PID") {
		return 0
	}
	return time.Duration(usec) * time.Microsecond
}

// Passed calls each for the descriptors that the manager has passed. The caller owns them.
func Passed(each func(name string, fd int)) {
	count, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	if err != nil || !forThisProcess("LISTEN_PID") {
		return
	}
	names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	for i := range count {
		name := "unknown" // as in sd_listen_fds_with_names
		if i < len(names) {
			name = names[i]
		}
		unix.CloseOnExec(FirstFD + i)
		each(name, FirstFD+i)
	}
}

// forThisProcess reports whether the environment is for this process: the variable holds its process ID or, for a
// process started by a keeper, is unset.
func forThisProcess(variable string) bool {
	pid := os.Getenv(variable)
	return pid == "" || pid == strconv.Itoa(os.Getpid())
}
