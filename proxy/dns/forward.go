package dns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/portal/kernel"
)

const (
	// maxForwards is the maximum number of queries that wait for upstreams. Each has a socket.
	maxForwards = 128
	// tryTimeout limits each step with one upstream: connecting, or waiting for its answer. askTimeout limits a query
	// to all upstreams: libc's resolver repeats its query after five seconds (resolv.conf(5), timeout).
	tryTimeout = 1500 * time.Millisecond
	askTimeout = 4500 * time.Millisecond
	// skipFor is how long an upstream that did not answer is asked after the others.
	skipFor = 30 * time.Second
	// logInterval is the shortest interval between two log lines that no upstream answers.
	logInterval = 10 * time.Second
)

var errNoUpstream = errors.New("no upstream resolver is known")

// upstreams are the resolvers for external names.
type upstreams struct {
	log   logrus.FieldLogger
	slots chan struct{}  // a waiting query holds one
	fixed bool           // servers do not come from a file
	self  netip.AddrPort // see Options

	mu         sync.Mutex // guards the fields below
	file       resolvConf
	unreadable string // the last error of reading it
	servers    []netip.AddrPort
	silent     map[netip.AddrPort]time.Time // those that did not answer, and when
	// away is set while the log says that no upstream responds, warned is the time when it last said so, and heardAt
	// the time of the last answer.
	away            bool
	warned, heardAt time.Time
}

func newUpstreams(o Options) *upstreams {
	u := &upstreams{
		log:    o.Log,
		slots:  make(chan struct{}, maxForwards),
		fixed:  len(o.Upstreams) > 0,
		self:   o.Self,
		file:   resolvConf{path: o.ResolvConf},
		silent: map[netip.AddrPort]time.Time{},
	}
	u.set(o.Upstreams)
	return u
}

// reserve takes a slot for a query, and returns false if there is none. release returns it.
func (u *upstreams) reserve() bool {
	select {
	case u.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

func (u *upstreams) release() { <-u.slots }

// ask queries one upstream after the other, and returns the first answer that is a success or NXDOMAIN. If there is
// none, it returns the last other answer, or an error.
func (u *upstreams) ask(ctx context.Context, m *dns.Msg) (poor *dns.Msg, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	start := time.Now()
	defer func() {
		if !errors.Is(ctx.Err(), context.Canceled) { // canceled: the Server ends
			u.logAvailability(start, err)
		}
	}()
	servers := u.inOrder(start)
	err = errNoUpstream
attempts:
	for range 2 { // a datagram is easily lost
		for _, server := range servers {
			var r *dns.Msg
			r, err = askOne(ctx, m, server)
			if err != nil && ctx.Err() != nil { // perhaps it had too little time
				break attempts
			}
			u.heard(server, err, time.Now())
			switch {
			case err != nil:
			case r.Rcode == dns.RcodeSuccess || r.Rcode == dns.RcodeNameError:
				return r, nil
			default:
				poor = r
			}
		}
		if poor != nil {
			break
		}
	}
	if poor != nil {
		return poor, nil
	}
	return nil, err
}

// inOrder returns the upstreams in the order to ask them: those that recently did not answer come last.
func (u *upstreams) inOrder(now time.Time) []netip.AddrPort {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.fixed && u.file.changed(now) {
		u.read()
	}
	var out, silent []netip.AddrPort
	for _, s := range u.servers {
		if since, ok := u.silent[s]; ok && now.Sub(since) < skipFor {
			silent = append(silent, s)
		} else {
			out = append(out, s)
		}
	}
	return append(out, silent...)
}

// read reads the file. If that fails, its previous content remains in force: the file may be about to be
// rewritten.
func (u *upstreams) read() {
	servers, err := Nameservers(u.file.path)
	if err != nil {
		if u.unreadable != err.Error() {
			u.log.WithError(err).Warn("Cannot read the list of resolvers")
		}
		u.unreadable = err.Error()
		u.file.info = nil // try again
		return
	}
	u.unreadable = ""
	u.set(servers)
	u.silent = map[netip.AddrPort]time.Time{}
}

// set sets the upstreams, without the Server itself.
func (u *upstreams) set(servers []netip.AddrPort) {
	u.servers = nil
	for _, s := range servers {
		if u.isSelf(s) {
			u.log.WithField("upstream", s.String()).Warn("Ignoring an upstream: it is this resolver")
			continue
		}
		u.servers = append(u.servers, s)
	}
}

// isSelf reports whether a query to server would come back to this Server.
func (u *upstreams) isSelf(server netip.AddrPort) bool {
	switch server.Addr() { // a query to an unspecified address goes to localhost
	case netip.IPv4Unspecified():
		server = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), server.Port())
	case netip.IPv6Unspecified():
		server = netip.AddrPortFrom(netip.IPv6Loopback(), server.Port())
	}
	switch {
	case server.Port() != u.self.Port():
		return false
	case !u.self.Addr().IsUnspecified():
		return server == u.self
	case server.Addr().IsLoopback():
		return true
	}
	addrs, _ := kernel.LocalAddrs() // none on error
	return slices.Contains(addrs, server.Addr().WithZone(""))
}

// heard records whether a server answered.
func (u *upstreams) heard(server netip.AddrPort, err error, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.silent, server)
	if err != nil {
		u.silent[server] = now
	}
}

// logAvailability logs when upstreams stop answering, at most once every logInterval, and when they answer again. err
// is the result of a query that was sent at start.
func (u *upstreams) logAvailability(start time.Time, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	switch {
	case err == nil:
		if u.heardAt = now; u.away {
			u.away = false
			u.log.Info("Resolving external names again")
		}
	case !u.away && u.heardAt.Before(start) && now.Sub(u.warned) >= logInterval:
		u.away, u.warned = true, now
		u.log.WithError(err).Warn("No upstream resolver responds for external names")
	}
}

// errOtherQuestion means that an answer does not match the query.
var errOtherQuestion = errors.New("the response is for another query")

// askOne asks one upstream over UDP, and over TCP if the answer was truncated.
func askOne(ctx context.Context, m *dns.Msg, server netip.AddrPort) (*dns.Msg, error) {
	r, err := askOver(ctx, "udp", m, server)
	if err != nil || !r.Truncated {
		return r, err
	}
	if whole, err := askOver(ctx, "tcp", m, server); err == nil {
		return whole, nil
	}
	return r, nil
}

func askOver(ctx context.Context, network string, m *dns.Msg, server netip.AddrPort) (*dns.Msg, error) {
	client := dns.Client{Net: network, Timeout: tryTimeout}
	conn, err := client.DialContext(ctx, server.String())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	r, _, err := client.ExchangeWithConnContext(ctx, m, conn)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", server, err)
	}
	if len(r.Question) != 1 || r.Question[0].Qtype != m.Question[0].Qtype || !strings.EqualFold(r.Question[0].Name, m.Question[0].Name) {
		return nil, fmt.Errorf("%s: %w", server, errOtherQuestion)
	}
	return r, nil
}
