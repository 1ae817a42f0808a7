package proxy

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/usherproxy/usher/portal/handover"
)

// budget reckons the descriptors that this process may have: who has them, and
// who may have more. Listeners, connections and UDP sessions take from it. It may be
// used from any goroutine.
//
// Nobody can take what others need. UDP sessions have a quarter of the descriptors
// at the most, since anybody can send datagrams from addresses that are not theirs;
// connections leave an eighth to UDP where that is served, so that a node's DNS
// goes on. And of the room for connections, or for sessions, the last eighth is for
// clients that have little; of that for connections, the last sixteenth is for service
// ports that have little.
type budget struct {
	descriptors int64 // that the process may have; see RLIMIT_NOFILE in getrlimit(2)
	// As the user set them; 0 is no bound of its own.
	maxConnections, maxConnectionsPerPort int64
	maxSessions, maxSessionsPerPort       int64
	clientShare                           int64 // in percent

	listeners   atomic.Int64 // one descriptor each
	loops       atomic.Int64 // descriptors that the TCP loops may have, pipes included
	udp         atomic.Int64 // descriptors of UDP's loops, and of its sockets beyond one for each listener
	connections atomic.Int64 // open; two descriptors each
	sessions    atomic.Int64 // open; one descriptor each
}

func newBudget(o *Options) budget {
	return budget{
		descriptors:    openFilesLimit(),
		maxConnections: o.MaxConnections, maxConnectionsPerPort: o.MaxConnectionsPerPort,
		maxSessions: o.MaxUDPSessions, maxSessionsPerPort: o.MaxUDPSessionsPerPort,
		clientShare: o.MaxClientShare,
	}
}

const mostReserved = 256 + mostProbes + handover.SocketsAtOnce

// reserved returns how many descriptors are kept for standard files, epoll, netlink,
// admin clients, iptables' pipes, probes, and the copies of listeners of which a
// handover makes so many at a time. Where few are allowed, a quarter has to do.
func (b *budget) reserved() int64 { return min(mostReserved, b.descriptors/4) }

// usable returns how many descriptors there are for listeners, connections and
// sessions.
func (b *budget) usable() int64 { return b.descriptors - b.reserved() }

// maxListeners returns how many descriptors listeners may take: a quarter stays
// for connections, without which listeners are of no use.
func (b *budget) maxListeners() int64 { return max(1, b.usable()*3/4) }

// errOpenFiles says that there is no room for another listener under the limit on
// open files.
var errOpenFiles = errors.New("the limit on open files has no room for another listener")

// roomForListener returns an error if there is no room for another listener.
func (b *budget) roomForListener() error {
	if b.listeners.Load() < b.maxListeners() {
		return nil
	}
	return fmt.Errorf("%w: of %d, %d may be listeners", errOpenFiles, b.descriptors, b.maxListeners())
}

// fixed returns how many descriptors are in use by what does not come and go with
// clients.
func (b *budget) fixed() int64 { return b.listeners.Load() + b.loops.Load() + b.udp.Load() }

// connectionLimit returns how many connections may be open at once.
func (b *budget) connectionLimit() int64 {
	sessions := b.sessions.Load()
	if b.udp.Load() > 0 {
		sessions = max(sessions, min(b.maxSessions, b.usable()/8))
	}
	limit := max(1, (b.usable()-b.fixed()-sessions)/2)
	if b.maxConnections > 0 {
		limit = min(limit, b.maxConnections)
	}
	return limit
}

// sessionLimit returns how many UDP sessions may be open at once.
func (b *budget) sessionLimit() int64 {
	return min(b.maxSessions, max(1, b.usable()/4))
}

// sessionLimitPerPort returns how many of those one service port may have.
func (b *budget) sessionLimitPerPort() int64 {
	if b.maxSessionsPerPort > 0 {
		return b.maxSessionsPerPort
	}
	return max(1, b.sessionLimit()/2)
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
func (b *budget) clientsPart(limit int64) int64 { return max(1, limit*b.clientShare/100) }

// Why there is no room for a connection.
var (
	errTooMany         = errors.New("too many connections")
	errTooManyToPort   = errors.New("too many connections to this service port")
	errTooManyOfClient = errors.New("too many connections of this client, while there is little room left")
)

// takeConnection takes room for a connection, or says why there is none. toPort and
// ofClient are how many the service port and the client have open, this one
// included.
func (b *budget) takeConnection(toPort, ofClient int64) error {
	open, limit := b.connections.Add(1), b.connectionLimit()
	perPort := b.maxConnectionsPerPort
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
	b.connections.Add(-1)
	return err
}

// fullness says whether there is room for another UDP session.
type fullness uint8

const (
	notFull    fullness = iota
	portFull            // the service port has its share
	clientFull          // the client has its share, and room is scarce
	allFull             // all sessions, or the descriptors, are in use
)

// takeSession takes room for a UDP session, or says whose must go before. toPort is
// how many the service port has, this one included; ofClient how many the client has
// on one loop, of so many over whose sockets the kernel spreads its datagrams evenly.
func (b *budget) takeSession(toPort, ofClient int64, sockets int) fullness {
	open, limit, perPort := b.sessions.Add(1), b.sessionLimit(), b.sessionLimitPerPort()
	full := open > limit || b.fixed()+open+2*b.connections.Load() > b.usable()
	var whose fullness
	switch {
	case (full || scarce(open, limit, partForClients) || scarce(toPort, perPort, partForClients)) && ofClient > max(1, b.clientsPart(limit)/int64(sockets)):
		whose = clientFull
	case toPort > perPort:
		whose = portFull
	case full:
		whose = allFull
	default:
		return notFull
	}
	b.sessions.Add(-1)
	return whose
}
