package fdstore

// ConnectionsName is the name of the socket that a keeper passes to each usher process, in addition to the kept files.
// Through it the process saves its open TCP connections with the keeper, which passes them to the next process after a
// crash. Packets, of which each begins with one of the words:
//
//	usher                                keeper
//	area A               →                    with the descriptor of a shared memory
//	save A, and lines    →                    each the number of a slot in area A, and a transfer; with the sockets, two for each
//	pipe A P             →                    with both ends of a pipe, that may hold bytes of pairs in area A
//	drop A SLOT…         →                    those have ended: the keeper closes its copies
//	unpipe A P           →                    that pipe is closed
//	next                 →                    requests the connections of a process that crashed
//	                     ←    area A          with its memory; packets "save A" follow
//	                     ←    pipe A P, save A, … as above, one for each "next"
//	                     ←    end             there are no more
//	                     ←    more            another process has crashed: send "next" again
//
// A and P are numbers. The keeper does not interpret transfers.
const ConnectionsName = "connections"

// Names of files that the daemon keeps with its manager, in addition to the listeners of Services (see
// proxy.Options.Store): the lock of the rules, and the listener of the health check.
const (
	LockName   = "lock"
	HealthName = "health"
)

// The words.
const (
	WordArea   = "area"
	WordSave   = "save"
	WordPipe   = "pipe"
	WordDrop   = "drop"
	WordUnpipe = "unpipe"
	WordNext   = "next"
	WordEnd    = "end"
	WordMore   = "more"
)

const (
	// MaxPacket is the maximum size of a packet, in bytes.
	MaxPacket = 64 << 10
	// SavedAtOnce is the maximum number of connections in a packet. An event loop serves no others while its packet is
	// made.
	SavedAtOnce = 16
)
