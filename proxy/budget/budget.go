// Package budget counts the file descriptors and local ports of this process, and limits their use. Listeners,
// connections and UDP sessions take from the budget.
//
// None of the three can take all descriptors from the other two. Some descriptors are reserved for everything else (see
// mostReserved). Of the rest, UDP sessions have at most a quarter, since any host can send datagrams with forged source
// addresses. If UDP is served, an eighth (less if MaxUDPSessions is lower) is kept free of connections, so that a
// node's DNS keeps working. When a limit is nearly reached, large users get nothing more, so that something is left for
// small ones. A client that holds its share (MaxClientShare percent of the limit) or more gets none of the last
// eighth of the connections or sessions. A service port that has half of the limit gets none of the last sixteenth of
// the connections (unless MaxConnectionsPerPort is set). A namespace that has more than half of the listeners gets none
// of the last eighth.
package budget

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/usherproxy/usher/portal/handover"
	"github.com/usherproxy/usher/portal/kernel"
)

// Limits are configured limits. They apply in addition to those that Budget computes from the number of descriptors.
type Limits struct {
	// MaxConnections limits open connections. 0 means only the limit that Budget computes: see ConnectionLimit.
	MaxConnections int64
	// MaxConnectionsPerPort limits the connections of one service port. If it is 0, a port is limited only when the
	// connection limit is nearly reached: then to half of it (see scarce).
	MaxConnectionsPerPort int64

	// MaxUDPSessions limits open UDP sessions. SessionLimit may be lower.
	MaxUDPSessions int64

	// MaxClientShare is the percentage of the connection limit, and of the session limit, that one client address may
	// hold when that limit is nearly reached; 100 means no limit per client. A client with this share gets no further
	// connection. If it begins another UDP session, its session that has been idle longest ends.
	MaxClientShare int64
}

// Budget has the current use of descriptors and its limits. It is safe for concurrent use.
type Budget struct {
	Descriptors int64 // limit of the process; see RLIMIT_NOFILE in getrlimit(2)
	usable      int64 // the number of descriptors for listeners, connections and sessions
	limits      Limits

	// Current use. TakeConnection, TakeSession and TakePort add 1 if they succeed; the code that later closes the
	// connection or session subtracts it again. CountListener adds and subtracts. The event loops change TCPLoops and
	// UDP.
	Listeners   atomic.Int64 // one descriptor each; see CountListener
	TCPLoops    atomic.Int64 // descriptors set aside for the TCP event loops and their pipes for splice(2)
	UDP         atomic.Int64 // descriptors of the UDP loops
	Connections atomic.Int64 // open; two descriptors each
	Sessions    atomic.Int64 // open; one descriptor each
	Ports       atomic.Int64 // ports of this node that UDP sessions use

	localPorts         int64        // size of the kernel's range of ephemeral ports; 0 if unknown
	firstLocal         uint16       // the first of these ports
	localTCP, localUDP atomic.Int64 // listeners on these ports; SCTP counts as TCP

	mu          sync.Mutex
	inNamespace map[string]int64 // listeners by the namespace of their Service
}

// New returns an unused budget.
func New(limits Limits) *Budget { return Of(openFilesLimit(), limits) }

// Of returns an unused budget for a process with this limit of descriptors. With a low limit, a quarter of it is
// reserved for other uses than listeners, connections and sessions.
func Of(descriptors int64, limits Limits) *Budget {
	b := &Budget{Descriptors: descriptors, usable: descriptors - min(mostReserved, descriptors/4), limits: limits, inNamespace: map[string]int64{}}
	if local := kernel.LocalPorts(); !local.IsZero() {
		b.localPorts, b.firstLocal = int64(local.Last)-int64(local.First)+1, local.First
	}
	return b
}

// Descriptors reserved for other uses: standard files, epoll, netlink, admin clients and pipes to the iptables command;
// two kinds of probes, with one descriptor per probe; and, during a handover, copies of up to SocketsAtOnce listeners.
const (
	mostProbes   = 64
	mostReserved = 256 + 2*mostProbes + handover.SocketsAtOnce
)

// maxListeners returns the maximum number of descriptors for listeners. A quarter stays for connections, without which
// listeners are useless.
func (b *Budget) maxListeners() int64 { return max(1, b.usable*3/4) }

// Reasons to refuse a listener.
var (
	ErrOpenFiles  = errors.New("too many listeners for the open files limit")
	ErrLocalPorts = errors.New("too many listeners on local ports")
)

// localListeners returns the number of listeners on ephemeral ports, and its maximum. TCP and UDP have separate port
// numbers; of each, a quarter stays free. TCP listeners may have the other three quarters. UDP listeners may have one
// quarter, since UDP sessions may use half.
func (b *Budget) localListeners(udp bool) (open *atomic.Int64, most int64) {
	if udp {
		return &b.localUDP, b.localPorts / 4
	}
	return &b.localTCP, b.localPorts * 3 / 4
}

// AdmitListener returns an error if there is no capacity for another listener of a Service in namespace. local means
// that it gets one of the kernel's ephemeral ports. The number of such listeners is limited, so that Services with many
// ports leave enough ports for the node's own connections. A namespace with more than half of all listeners gets none
// of the last eighth. While clients use all other descriptors, new listeners take up to a quarter of the reserved ones.
func (b *Budget) AdmitListener(namespace string, udp, local bool) error {
	b.mu.Lock()
	large := 2*b.inNamespace[namespace] > b.Listeners.Load()
	b.mu.Unlock()
	share := func(most int64) (int64, string) {
		if large {
			return most - most/8, fmt.Sprintf(", and %d more are reserved for namespaces other than %s", most/8, namespace)
		}
		return most, ""
	}
	if most, rest := share(b.maxListeners()); b.Listeners.Load() >= most {
		return fmt.Errorf("%w: of %d descriptors, %d may be listeners%s", ErrOpenFiles, b.Descriptors, most, rest)
	}
	if used, of := b.Used(); used >= of+(b.Descriptors-of)/4 {
		return fmt.Errorf("%w: %d of %d descriptors are in use", ErrOpenFiles, used, b.Descriptors)
	}
	open, most := b.localListeners(udp)
	if most, rest := share(most); local && most > 0 && open.Load() >= most {
		return fmt.Errorf("%w: they may use %d of the %d ports in net.ipv4.ip_local_port_range%s; set --proxy-port-range to other ports", ErrLocalPorts, most, b.localPorts, rest)
	}
	return nil
}

// CountListener records that a listener at port, for a Service in namespace, has opened (change is 1) or closed (change
// is -1).
func (b *Budget) CountListener(namespace string, port uint16, udp bool, change int64) {
	b.Listeners.Add(change)
	b.mu.Lock()
	if b.inNamespace[namespace] += change; b.inNamespace[namespace] == 0 {
		delete(b.inNamespace, namespace)
	}
	b.mu.Unlock()
	if offset := int64(port) - int64(b.firstLocal); 0 <= offset && offset < b.localPorts {
		open, _ := b.localListeners(udp)
		open.Add(change)
	}
}

// fixed returns the number of descriptors in use that do not depend on clients.
func (b *Budget) fixed() int64 { return b.Listeners.Load() + b.TCPLoops.Load() + b.UDP.Load() }

// Used returns the number of descriptors in use, and the maximum.
func (b *Budget) Used() (used, of int64) {
	return b.fixed() + 2*b.Connections.Load() + b.Sessions.Load(), b.usable
}

// ConnectionLimit returns the maximum number of open connections.
func (b *Budget) ConnectionLimit() int64 {
	sessions := b.Sessions.Load()
	if b.UDP.Load() > 0 {
		sessions = max(sessions, min(b.limits.MaxUDPSessions, b.usable/8))
	}
	limit := max(1, (b.usable-b.fixed()-sessions)/2)
	if b.limits.MaxConnections > 0 {
		limit = min(limit, b.limits.MaxConnections)
	}
	return limit
}

// SessionLimit returns the maximum number of open UDP sessions.
func (b *Budget) SessionLimit() int64 {
	return min(b.limits.MaxUDPSessions, max(1, b.usable/4))
}

// SessionLimitPerPort returns the maximum number of sessions of one service port: half of SessionLimit.
func (b *Budget) SessionLimitPerPort() int64 { return max(1, b.SessionLimit()/2) }

// 1/clientReserve of a limit is reserved for clients with few connections or sessions, and 1/portReserve of the
// connection limit for service ports with few connections. The divisions round down, so a very low limit has no
// reserved part.
const (
	clientReserve = 8
	portReserve   = 16
)

// scarce reports whether count reaches into the reserved part of limit, its last 1/reserve.
func scarce(count, limit, reserve int64) bool { return count > limit-limit/reserve }

// clientShare returns how much of limit one client address may hold when capacity is scarce.
func (b *Budget) clientShare(limit int64) int64 { return max(1, limit*b.limits.MaxClientShare/100) }

// Reasons to refuse a connection.
var (
	errTooMany         = errors.New("too many connections")
	errTooManyToPort   = errors.New("too many connections to this service port")
	errTooManyOfClient = errors.New("too many connections from this client while most of the connection limit is in use")
)

// TakeConnection counts a new connection, or returns the limit that it exceeds. toPort and ofClient are the open
// connections of the service port and the client, this one included.
func (b *Budget) TakeConnection(toPort, ofClient int64) error {
	open, limit, perPort := b.Connections.Add(1), b.ConnectionLimit(), b.limits.MaxConnectionsPerPort
	var err error
	switch {
	case open > limit:
		err = errTooMany
	case perPort > 0 && toPort > perPort, perPort == 0 && toPort > max(1, limit/2) && scarce(open, limit, portReserve):
		err = errTooManyToPort
	case ofClient > b.clientShare(limit) && scarce(open, limit, clientReserve):
		err = errTooManyOfClient
	default:
		return nil
	}
	b.Connections.Add(-1)
	return err
}

// AdmitClient checks the share of a client behind a load balancer. The connection first counts as one of the load
// balancer's, until its PROXY header names the client. ofClient is the client's number of connections, this one
// included.
func (b *Budget) AdmitClient(ofClient int64) error {
	if limit := b.ConnectionLimit(); scarce(b.Connections.Load(), limit, clientReserve) && ofClient > b.clientShare(limit) {
		return errTooManyOfClient
	}
	return nil
}

// Limit is the limit that a new UDP session exceeds.
type Limit uint8

const (
	NoLimit     Limit = iota
	PortLimit         // of the service port
	ClientLimit       // of the client, which applies when capacity is scarce
	TotalLimit        // of all sessions, or of descriptors
)

// TakeSession counts a new UDP session, or returns the limit that it exceeds: the caller must then evict a session that
// counts towards this limit, and try again. toPort and ofClient are the sessions of the service port and the client,
// this one included.
func (b *Budget) TakeSession(toPort, ofClient int64) Limit {
	open, limit := b.Sessions.Add(1), b.SessionLimit()
	perPort := max(1, limit/2)
	full := open > limit || b.fixed()+open+2*b.Connections.Load() > b.usable
	var whose Limit
	switch {
	case ofClient > b.clientShare(limit) && (full || scarce(open, limit, clientReserve) || scarce(toPort, perPort, clientReserve)):
		whose = ClientLimit
	case toPort > perPort:
		whose = PortLimit
	case full:
		whose = TotalLimit
	default:
		return NoLimit
	}
	b.Sessions.Add(-1)
	return whose
}

// TakePort counts a port of this node for a UDP session, or returns the limit that it exceeds, as TakeSession does.
// Each session whose datagrams have the node's address as the source, and not the client's, needs its own port. All
// sessions together have at most half of the ports: the rest is for listeners and other programs, and the fewer ports
// are free, the longer the kernel takes to find one. The sessions of one service port use at most half of that half;
// toPort is the number of ports that they use, this one included.
func (b *Budget) TakePort(toPort int64) Limit {
	taken, limit := b.Ports.Add(1), max(1, b.localPorts/2)
	var whose Limit
	switch {
	case b.localPorts == 0:
		return NoLimit
	case toPort > max(1, limit/2):
		whose = PortLimit
	case taken > limit:
		whose = TotalLimit
	default:
		return NoLimit
	}
	b.Ports.Add(-1)
	return whose
}

// Probes returns the maximum number of concurrent probes of each of the two kinds: probes of failed endpoints, and
// probes that Services configure. Each takes a reserved descriptor.
func (b *Budget) Probes() int64 {
	return max(1, (b.Descriptors-b.usable)*mostProbes/mostReserved)
}

// Pipes returns the maximum number of pipes of each loop: all together have at most a sixteenth of the descriptors.
func (b *Budget) Pipes(loops int) int { return int(b.Descriptors) / 16 / 2 / loops }

// NeededFor returns the open-files limit that is required for n listeners in addition to the open ones.
func (b *Budget) NeededFor(n int) int64 {
	share := (b.Listeners.Load()+int64(n))*4/3*8/7 + 2 // 4/3: see maxListeners; 8/7: one namespace may have most of the listeners
	return min(share+mostReserved, share*4/3+1)
}

// Clients counts the connections or sessions of each client address, in shards. The zero value is ready for use.
type Clients [16]struct {
	mu   sync.Mutex
	open map[netip.Addr]int64
}

// Add changes the client's count by change, which may be negative, and returns the new count.
func (c *Clients) Add(client netip.Addr, change int64) int64 {
	bits := client.As16()
	shard := &c[bits[15]%uint8(len(c))]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if shard.open == nil {
		shard.open = map[netip.Addr]int64{}
	}
	n := shard.open[client] + change
	if shard.open[client] = n; n == 0 {
		delete(shard.open, client)
	}
	return n
}
