// Package keeper implements the supervisor behind 'usher run --keeper'. It holds duplicates
// of usher's sockets and restarts usher after a crash. Until the restart, clients wait in
// the backlogs and buffers of the sockets, and no connection is refused.
//
// The keeper acts like systemd for a service with a file descriptor store: its usher process requests by sd_notify(3)
// which files to keep (package fdstore), and receives them again by sd_listen_fds(3). If a service manager has started
// the keeper, the keeper forwards the messages about usher's state and stored files to it, so that the listening
// sockets also survive a restart of keeper and usher.
//
//	the loop, and why a child exited   keeper_linux.go
//	messages and kept descriptors      store_linux.go
//	saved connections                  connections_linux.go
//	starting a child                   child_linux.go
//	the pause before a restart         pause_linux.go
//	SIGHUP: a new program              upgrade_linux.go
//
// The keeper knows nothing of Services, reads no configuration, and moves no bytes: this
// keeps it small, so that little in it can fail.
package keeper

import "github.com/sirupsen/logrus"

// Options configure a keeper.
type Options struct {
	// Arguments are usher's arguments, the program's name first.
	Arguments []string
	// Log is the keeper's log; LogLevel and LogFormat configure it after an upgrade.
	LogLevel, LogFormat string
	Log                 logrus.FieldLogger
	// RemoveRules makes the keeper call RemoveLeft when SIGTERM or SIGINT stops it. Otherwise only SIGINT does so, and
	// only if no usher process serves at that time and an earlier one held the lock.
	RemoveRules bool
	// RemoveLeft removes the rules that no running process owns.
	RemoveLeft func(logrus.FieldLogger) error
}

// ExitLocked is usher's exit code if it ends because another instance manages the
// portals (EX_TEMPFAIL of sysexits.h). The keeper does not restart it.
const ExitLocked = 75
