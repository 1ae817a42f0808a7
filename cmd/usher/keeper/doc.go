// Package keeper implements the supervisor behind 'usher run --keeper'. It holds duplicates
// of usher's sockets and restarts usher after a crash. Until the restart, clients wait in
// the backlogs and buffers of the sockets, and no connection is refused.
//
// For usher, the keeper is a file descriptor store like that of systemd: usher sends files to keep by sd_notify(3)
// (package fdstore), and the next usher process receives them by sd_listen_fds(3). If a service manager has started the
// keeper, the keeper forwards usher's messages about its state and these files to it. So the listening sockets also
// survive a restart of keeper and usher.
//
//	the loop, and why a child exited   keeper_linux.go
//	messages and kept descriptors      store_linux.go
//	saved connections                  connections_linux.go
//	starting a child                   child_linux.go
//	the pause before a restart         pause_linux.go
//	SIGHUP: upgrading usher            upgrade_linux.go
//
// SIGHUP upgrades usher, but not the keeper, which may therefore be older than usher. It may also be newer, after a
// SIGHUP that returns to an older usher. So all versions agree on the messages and names of package fdstore, the names
// of stored sockets (proxy.HandOverKept), and the parts of the memory for saved connections that the keeper reads
// (forward.SavedSize and forward.SavedOver). The keeper ignores messages that it does not know.
//
// The keeper knows nothing of Services, reads no configuration, and moves no bytes: this
// keeps it small, so that little in it can fail.
package keeper

import "github.com/sirupsen/logrus"

// Options configure a keeper.
type Options struct {
	// Arguments are usher's arguments, the program's name first.
	Arguments []string
	Log       logrus.FieldLogger
	// RemoveRules makes the keeper call RemoveLeft when SIGTERM or SIGINT stops it. Without RemoveRules, the keeper
	// calls RemoveLeft only after SIGINT, and only if no usher process serves although a previous one held the lock.
	RemoveRules bool
	// RemoveLeft removes the rules that no running process owns.
	RemoveLeft func(logrus.FieldLogger) error
}

// ExitLocked is usher's exit code if it ends because another instance manages the
// portals (EX_TEMPFAIL of sysexits.h). The keeper does not restart it.
const ExitLocked = 75
