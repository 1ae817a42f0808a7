// Package budget reckons the descriptors that this process may have: who has them, and
// who may have more. Listeners, connections and UDP sessions take from it.
//
// Nobody can take what others need. UDP sessions have a quarter of the descriptors
// at the most, since anybody can send datagrams from addresses that are not theirs;
// connections leave an eighth to UDP where that is served, so that a node's DNS
// goes on. And of the room for connections, or for sessions, the last eighth is for
// clients that have little; of that for connections, the last sixteenth is for service
// ports that have little.
package budget

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/portal/kernel"
)

// Limits are bounds beside those that follow from descriptors.
type Limits struct {
	// MaxConnections bounds the connections that are open at once. 0 means as
	// many as file descriptors allow, which is the bound in any case: a
	// little under half of them.
	MaxConnections int64
	// MaxConnectionsPerPort bounds those of one service port; 0 means half of
	// them when there is little room left.
	MaxConnectionsPerPort int64

	// MaxUDPSessions bounds the UDP sessions that are open at once. A quarter
	// of the file descriptors is the bound in any case.
	MaxUDPSessions int64
	// MaxUDPSessionsPerPort bounds those of one service port; 0 means half of
	// what all may have together.
	MaxUDPSessionsPerPort int64

	// MaxClientShare is how many percent of the connections, and of the UDP
	// sessions, that may be open at once one client address may have when there is
	// little room left; 100 means as many as there are. The client that has more
	// gets no further connection, and its session that has been idle longest ends.
	MaxClientShare int64
}

// Budget says what is in use, and what may be. It may be used from any goroutine.
type Budget struct {
	Descriptors int64 // that the process may have; see RLIMIT_NOFILE in getrlimit(2)
	limits      Limits

	// What is in use. Who opens something adds it, and takes it off when it is closed;
	// TakeConnection and TakeSession add by themselves.
	Listeners   atomic.Int64 // one descriptor each
	TCPLoops    atomic.Int64 // descriptors that the TCP loops may have, pipes included
	UDP         atomic.Int64 // descriptors of UDP's loops
	Connections atomic.Int64 // open; two descriptors each
	Sessions    atomic.Int64 // open; one descriptor each
	Ports       atomic.Int64 // that UDP sessions have of this node's own

	localPorts int64 // that the kernel gives to sockets which ask for none; 0 if it does not tell
}

// New returns a budget of which nothing is in use.
func New(limits Limits) *Budget {
	b := &Budget{Descriptors: openFilesLimit(), limits: limits}
	if local := kernel.LocalPorts(); !local.IsZero() {
		b.localPorts = int64(local.Last) - int64(local.First) + 1
	}
	return b
}

// Descriptors that are kept for what comes by ones: standard files, epoll, netlink, admin
// clients and iptables' pipes; probes, of which each takes one, of two kinds; and the copies of listeners
// of which a handover makes so many at a time.
const (
	mostProbes   = 64
	mostReserved = 256 + 2*mostProbes + handover.SocketsAtOnce
)

// usable returns how many descriptors there are for listeners, connections and
// sessions. Where few are allowed, a quarter has to do for all else.
func (b *Budget) usable() int64 { return b.Descriptors - min(mostReserved, b.Descriptors/4) }

// maxListeners returns how many descriptors listeners may take: a quarter stays
// for connections, without which listeners are of no use.
func (b *Budget) maxListeners() int64 { return max(1, b.usable()*3/4) }

// ErrOpenFiles says that there is no room for another listener under the limit on
// open files.
var ErrOpenFiles = errors.New("open files limit reached, no descriptor left for another listener")

// RoomForListener returns an error if there is no room for another listener.
func (b *Budget) RoomForListener() error {
	if b.Listeners.Load() < b.maxListeners() {
		return nil
	}
	return fmt.Errorf("%w: of %d, %d may be listeners", ErrOpenFiles, b.Descriptors, b.maxListeners())
}

// fixed returns how many descriptors are in use by what does not come and go with
// clients.
func (b *Budget) fixed() int64 { return b.Listeners.Load() + b.TCPLoops.Load() + b.UDP.Load() }

// Used returns how many descriptors are in use, of how many that may be.
func (b *Budget) Used() (used, of int64) {
	return b.fixed() + 2*b.Connections.Load() + b.Sessions.Load(), b.usable()
}

// ConnectionLimit returns how many connections may be open at once.
func (b *Budget) ConnectionLimit() int64 {
	sessions, usable := b.Sessions.Load(), b.usable()
	if b.UDP.Load() > 0 {
		sessions = max(sessions, min(b.limits.MaxUDPSessions, usable/8))
	}
	limit := max(1, (usable-b.fixed()-sessions)/2)
	if b.limits.MaxConnections > 0 {
		limit = min(limit, b.limits.MaxConnections)
	}
	return limit
}

// SessionLimit returns how many UDP sessions may be open at once.
func (b *Budget) SessionLimit() int64 {
	return min(b.limits.MaxUDPSessions, max(1, b.usable()/4))
}

// SessionLimitPerPort returns how many of those one service port may have.
func (b *Budget) SessionLimitPerPort() int64 { return b.perPort(b.SessionLimit()) }

func (b *Budget) perPort(limit int64) int64 {
	if b.limits.MaxUDPSessionsPerPort > 0 {
		return b.limits.MaxUDPSessionsPerPort
	}
	return max(1, limit/2)
}

// Which part of the room is for those who have little. Where the room is less than so
// many, there is no such part.
const (
	partForClients = 8
	partForPorts   = 16
)

// scarce reports whether, with open of limit in use, only that part is left.
func scarce(open, limit, part int64) bool { return open > limit-limit/part }

// clientsPart returns how many of limit one client address may have when room is
// scarce.
func (b *Budget) clientsPart(limit int64) int64 { return max(1, limit*b.limits.MaxClientShare/100) }

// Why there is no room for a connection.
var (
	errTooMany         = errors.New("too many connections")
	errTooManyToPort   = errors.New("too many connections to this service port")
	errTooManyOfClient = errors.New("too many connections from this client while most of the connection limit is in use")
)

// TakeConnection takes room for a connection, or says why there is none. toPort and
// ofClient are how many the service port and the client have open, this one
// included.
func (b *Budget) TakeConnection(toPort, ofClient int64) error {
	open, limit := b.Connections.Add(1), b.ConnectionLimit()
	perPort := b.limits.MaxConnectionsPerPort
	if perPort == 0 && scarce(open, limit, partForPorts) {
		perPort = max(1, limit/2)
	}
	var err error
	switch {
	case open > limit:
		err = errTooMany
	case perPort > 0 && toPort > perPort:
		err = errTooManyToPort
	case scarce(open, limit, partForClients) && ofClient > b.clientsPart(limit):
		err = errTooManyOfClient
	default:
		return nil
	}
	b.Connections.Add(-1)
	return err
}

// RoomForClient returns what TakeConnection would if a connection that was taken is of
// another client, which has so many with it.
func (b *Budget) RoomForClient(ofClient int64) error {
	if limit := b.ConnectionLimit(); scarce(b.Connections.Load(), limit, partForClients) && ofClient > b.clientsPart(limit) {
		return errTooManyOfClient
	}
	return nil
}

// Room says whether there is room for another UDP session.
type Room uint8

const (
	Enough     Room = iota
	PortFull        // the service port has its share
	ClientFull      // the client has its share, and room is scarce
	AllFull         // all sessions, or the descriptors, are in use
)

// TakeSession takes room for a UDP session, or says whose must go before. toPort is
// how many the service port has, this one included; ofClient how many the client
// has, this one included.
func (b *Budget) TakeSession(toPort, ofClient int64) Room {
	open, limit := b.Sessions.Add(1), b.SessionLimit()
	perPort := b.perPort(limit)
	full := open > limit || b.fixed()+open+2*b.Connections.Load() > b.usable()
	var whose Room
	switch {
	case (full || scarce(open, limit, partForClients) || scarce(toPort, perPort, partForClients)) && ofClient > b.clientsPart(limit):
		whose = ClientFull
	case toPort > perPort:
		whose = PortFull
	case full:
		whose = AllFull
	default:
		return Enough
	}
	b.Sessions.Add(-1)
	return whose
}

// TakePort takes one of this node's ports for a UDP session, or says whose must go before.
// Each session that is not from its client's address has one for itself. All have half of
// them at the most: the rest is other programs', and the kernel takes the longer to find one, the
// fewer are left. One service port has half of that, of which toPort is how many it has with this
// one.
func (b *Budget) TakePort(toPort int64) Room {
	taken, limit := b.Ports.Add(1), max(1, b.localPorts/2)
	var whose Room
	switch {
	case b.localPorts == 0:
		return Enough
	case toPort > max(1, limit/2):
		whose = PortFull
	case taken > limit:
		whose = AllFull
	default:
		return Enough
	}
	b.Ports.Add(-1)
	return whose
}

// Probes returns how many probes of one kind may be under way at once, those of endpoints that
// failed and those that Services ask for: each takes a descriptor, of those that are reserved.
func (b *Budget) Probes() int64 {
	return max(1, (b.Descriptors-b.usable())*mostProbes/mostReserved)
}

// Pipes returns how many pipes each of so many loops may have: all together have a
// sixteenth of the descriptors at the most.
func (b *Budget) Pipes(loops int) int { return int(b.Descriptors) / 16 / 2 / loops }

// NeededFor returns the limit on open files that holds so many listeners beside those
// that there are.
func (b *Budget) NeededFor(more int) int64 {
	share := (b.Listeners.Load()+int64(more))*4/3 + 1
	return min(share+mostReserved, share*4/3+1)
}
