package manifest

import (
	"net/netip"
	"time"

	"github.com/fsnotify/fsnotify"
)

// SetNotify replaces the source of file events.
func (s *Source) SetNotify(notify func() (*fsnotify.Watcher, error)) { s.notify = notify }

// OnServiceCIDRs sets Options.OnServiceCIDRs.
func (s *Source) OnServiceCIDRs(f func([]netip.Prefix)) { s.onCIDRs = f }

// SetDebounce sets how long a file must stay unchanged until the Source reads it, and missing until the Source
// removes its objects.
func (s *Source) SetDebounce(quiet, confirm time.Duration) {
	s.loader.debounce = debounce{quiet: quiet, quietMax: 10 * quiet, confirm: confirm}
}
