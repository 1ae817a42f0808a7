// Package fdstore keeps copies of open files with whoever started this process, its
// service manager, for the process that comes after it, and tells the manager how this
// one is. The protocol is that of sd_notify(3) with the file descriptor store, so the
// manager is systemd, or what plays its part: 'usher run --keeper'.
//
// What is kept has a name. The manager knows nothing more of it, and hands it to the next
// process it starts, however this one ended. Several files may share a name.
//
// All is told by one goroutine, in order, and nobody waits for it. A manager that does
// not read is given up: what it was given stays with it.
package fdstore
