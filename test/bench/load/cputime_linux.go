package load

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime returns the CPU time of a process, ended threads included, with nanosecond resolution. It reads the clock of
// clock_getcpuclockid(3), whose number the kernel defines in include/linux/posix-timers_types.h.
func CPUTime(pid int) (time.Duration, error) {
	const cpuclockSched = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|cpuclockSched, &t); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}
