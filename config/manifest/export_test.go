package manifest

import (
	"net/netip"
	"time"

	"github.com/fsnotify/fsnotify"
)

// SetNotify replaces how the Source gets its events.
func (s *Source) SetNotify(notify func() (*fsnotify.Watcher, error)) { s.notify = notify }

// OnServiceCIDRs sets Options.OnServiceCIDRs.
func (s *Source) OnServiceCIDRs(f func([]netip.Prefix)) { s.onCIDRs = f }

// SetPatience makes the Source wait so long until it believes that a file is written,
// and that one is gone.
func (s *Source) SetPatience(settle, confirm time.Duration) {
	s.loader.patience = patience{settle: settle, settleMax: 10 * settle, confirm: confirm}
}
