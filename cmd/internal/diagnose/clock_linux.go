package diagnose

import (
	"context"

	"golang.org/x/sys/unix"
)

// clock checks whether the kernel's clock is synchronized (adjtimex(2)), unless usher already reports that the clock
// differs from the API server's.
func clock(_ context.Context, s *subject) []Finding {
	state, err := unix.Adjtimex(&unix.Timex{})
	if s.reports("ClockSkew") || err != nil || state != 5 { // TIME_ERROR
		return nil
	}
	return []Finding{{"", Note, "node", "node clock is not synchronized", "adjtimex returned TIME_ERROR", "see timedatectl; certificates and log times depend on the clock"}}
}
