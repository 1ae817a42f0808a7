// Package keeper is the small process that holds copies of usher's sockets and starts
// usher again when it ends unexpectedly: 'usher run --keeper'. Meanwhile clients wait in
// the backlogs and buffers of the sockets, and nobody is refused.
//
// It plays the part that systemd has for a service with a file descriptor store: its
// usher tells it by sd_notify(3) which files to keep (package fdstore), and finds them
// again by sd_listen_fds(3). If a service manager has started the keeper, that one is
// passed on all that the keeper is told, so that a restart of both finds the sockets too.
//
//	the loop, and who ended why      keeper_linux.go
//	what usher says, and is kept     store_linux.go
//	starting one                     child_linux.go
//	while it pauses                  pause_linux.go
//	SIGHUP: a new program            upgrade_linux.go
//
// It knows nothing of Services, reads no configuration, and moves no bytes: what it does
// not do cannot fail.
package keeper

// ExitLocked is the exit code of an usher that ends since another one manages the
// portals (EX_TEMPFAIL of sysexits.h). It is not started again.
const ExitLocked = 75
