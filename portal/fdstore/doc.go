// Package fdstore stores copies of open files with this process's service manager, for the next process, and reports
// this process's state to the manager. The protocol is that of sd_notify(3) with the file descriptor store, so the
// manager is systemd or an equivalent: 'usher run --keeper'.
//
// Each stored file has a name, and several files may share one. The manager knows only the names. It passes the files
// to the next process that it starts, however this one ended.
//
// One goroutine sends all messages in order, and callers do not wait for it. If the manager stops reading, sending
// ends; the manager keeps the files that it has.
package fdstore
