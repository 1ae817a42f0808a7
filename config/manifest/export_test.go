package manifest

import "github.com/fsnotify/fsnotify"

// SetNotify replaces how the Source gets its events.
func (s *Source) SetNotify(notify func() (*fsnotify.Watcher, error)) { s.notify = notify }
