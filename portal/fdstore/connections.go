package fdstore

// ConnectionsName is the name of the socket that a keeper passes to each usher process, in addition to the kept files.
// Through it the process saves its open TCP connections with the keeper, which passes them to the next process after a
// crash. Each packet begins with one of the words:
//
//	usher                                keeper
//	area A               →                    with the descriptor of a shared memory file
//	save A, and lines    →                    each a slot number in area A, and a transfer; with two sockets for each
//	drop A SLOT…         →                    these have ended: the keeper closes its copies
//	next                 →                    requests the connections of a process that crashed
//	end                  →                    the process requests no more: the keeper resets those that it has not sent
//	                     ←    area A          with its memory
//	                     ←    save A, …       as above, one for each "next", by slot number
//	                     ←    end             there are no more, or the keeper could not send them and has reset them
//	                     ←    more            another process has crashed: send "next" again
//
// A is a number. A negative slot is a pipe, which may hold bytes of connections in the area. Its line has no transfer,
// and comes with both ends of the pipe. The keeper does not interpret transfers.
const ConnectionsName = "connections"

// Names of files that the daemon keeps with its manager: the lock of the rules, and the listener of the health check.
// For the listeners of Services, see proxy.Options.Store.
const (
	LockName   = "lock"
	HealthName = "health"
)

// The words.
const (
	WordArea = "area"
	WordSave = "save"
	WordDrop = "drop"
	WordNext = "next"
	WordEnd  = "end"
	WordMore = "more"
)

const (
	// MaxPacket is the maximum size of a packet, in bytes.
	MaxPacket = 64 << 10
	// SavedAtOnce is the maximum number of slots in a packet. While an event loop makes a packet, it serves no
	// connection.
	SavedAtOnce = 16
)
