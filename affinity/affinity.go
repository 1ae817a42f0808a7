package affinity

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Limits bounds the number of entries in each table, and in all tables that share the Limits, so that a flood of
// clients cannot exhaust memory. An entry takes about 200 bytes.
type Limits struct {
	PerTable int64 // entries in one table; at least 1
	Total    int64 // entries in all tables that use the same Limits

	// Changed, if not nil, receives a value when an entry is added or refreshed. If the send would block, no value is
	// sent.
	Changed chan<- struct{}

	used atomic.Int64
}

// Used returns the number of entries in all tables that share l.
func (l *Limits) Used() int64 { return l.used.Load() }

// Table maps clients to their endpoints. A full Table replaces the least recently used entry; only writing an entry
// (Set, Claim, Restore) counts as a use. A Table is safe for concurrent use.
type Table struct {
	limits *Limits

	mu      sync.Mutex
	timeout time.Duration
	clients *simplelru.LRU[netip.Addr, entry] // nil while the timeout is 0, which saves memory: most Services have no affinity
}

type entry struct {
	endpoint netip.AddrPort
	since    time.Time // the client's last new connection
}

// NewTable returns an empty table. A client keeps its endpoint for timeout after its last new connection; 0 disables
// the table.
func NewTable(limits *Limits, timeout time.Duration) *Table {
	t := &Table{limits: limits}
	t.SetTimeout(timeout)
	return t
}

// SetTimeout changes the timeout, also of existing entries. A timeout of 0 removes them.
func (t *Table) SetTimeout(timeout time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timeout = timeout
	switch {
	case timeout <= 0:
		if t.clients != nil {
			t.limits.used.Add(-int64(t.clients.Len()))
		}
		t.clients = nil
	case t.clients == nil:
		// NewLRU only fails for a size below 1.
		size := max(int(t.limits.PerTable), 1)
		t.clients, _ = simplelru.NewLRU(size, func(netip.Addr, entry) { t.limits.used.Add(-1) })
	}
}

func (t *Table) peek(client netip.Addr) (e entry, known bool) {
	if t.clients == nil {
		return entry{}, false
	}
	return t.clients.Peek(client)
}

// Get returns the client's endpoint. If the entry has expired at now, Get removes it and returns false.
func (t *Table) Get(client netip.Addr, now time.Time) (endpoint netip.AddrPort, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.peek(client)
	if !ok {
		return netip.AddrPort{}, false
	}
	if t.expired(e, now) {
		t.clients.Remove(client)
		return netip.AddrPort{}, false
	}
	return e.endpoint, true
}

// Peek is Get without removing an expired entry. It also returns how long the entry remains valid.
func (t *Table) Peek(client netip.Addr, now time.Time) (Entry, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.peek(client)
	if !ok || t.expired(e, now) {
		return Entry{}, false
	}
	return Entry{Client: client, Endpoint: e.endpoint, Left: t.timeout - now.Sub(e.since)}, true
}

// Set records that client makes a new connection to endpoint at now.
func (t *Table) Set(client netip.Addr, endpoint netip.AddrPort, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(client, endpoint, now)
}

func (t *Table) set(client netip.Addr, endpoint netip.AddrPort, now time.Time) {
	if t.timeout <= 0 {
		return
	}
	if !t.clients.Contains(client) && !t.reserve() {
		return
	}
	select {
	case t.limits.Changed <- struct{}{}:
	default:
	}
	t.clients.Add(client, entry{endpoint: endpoint, since: now})
}

// Restore adds an entry from another process. The entry keeps its remaining time, but at most the table's timeout. If
// the table has an entry for a later connection of the client, Restore changes nothing.
func (t *Table) Restore(e Entry, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	since := now.Add(min(e.Left-t.timeout, 0))
	if had, known := t.peek(e.Client); known && had.since.After(since) || e.Left <= 0 {
		return
	}
	t.set(e.Client, e.Endpoint, since)
}

// Claim sets the endpoint of a client for which Get found no entry, and returns it. If another connection of the client
// has set one meanwhile, Claim returns that endpoint and changes nothing, not even the time of the last connection.
func (t *Table) Claim(client netip.Addr, endpoint netip.AddrPort, now time.Time) netip.AddrPort {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e, ok := t.peek(client); ok && !t.expired(e, now) {
		return e.endpoint
	}
	t.set(client, endpoint, now)
	return endpoint
}

// reserve reserves one entry under the limit for all tables. If the limit is reached, it removes the least recently
// used entry of t instead. It returns false if t has none. The last eighth of the limit is reserved for small tables,
// those that are empty or have fewer than PerTable/16 entries. Otherwise one Service with many ports, each with a
// table, could fill the limit and leave no entry for others.
func (t *Table) reserve() bool {
	most := t.limits.Total
	if int64(t.clients.Len()) >= max(1, t.limits.PerTable/16) {
		most -= most / 8
	}
	if t.limits.used.Add(1) <= most {
		return true
	}
	if _, _, ok := t.clients.RemoveOldest(); ok {
		return true
	}
	t.limits.used.Add(-1)
	return false
}

// Forget removes the client's entry if it still has this endpoint: a later connection may have set another one.
func (t *Table) Forget(client netip.Addr, endpoint netip.AddrPort) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e, ok := t.peek(client); ok && e.endpoint == endpoint {
		t.clients.Remove(client)
	}
}

// ForgetEndpoints removes the entries of all clients of the endpoints in gone, except those added meanwhile, and
// returns the number of entries removed.
func (t *Table) ForgetEndpoints(gone map[netip.AddrPort]bool) (n int) {
	if len(gone) == 0 {
		return 0
	}
	t.each(func(client netip.Addr, e entry) {
		if gone[e.endpoint] {
			t.clients.Remove(client)
			n++
		}
	})
	return n
}

// lockedFor is the number of entries visited before the table's lock is released.
const lockedFor = 1000

// each calls f for every entry that the table has now, least recently used first. f may remove the entry. The lock is
// held while f runs, and released every lockedFor entries, so that new connections wait for it only briefly.
func (t *Table) each(f func(netip.Addr, entry)) {
	t.mu.Lock()
	var clients []netip.Addr
	if t.clients != nil {
		clients = t.clients.Keys()
	}
	t.mu.Unlock()
	for some := range slices.Chunk(clients, lockedFor) {
		t.mu.Lock()
		for _, client := range some {
			if e, ok := t.peek(client); ok {
				f(client, e)
			}
		}
		t.mu.Unlock()
	}
}

// Close removes all entries.
func (t *Table) Close() { t.SetTimeout(0) }

// Entry is one client's affinity.
type Entry struct {
	Client   netip.Addr
	Endpoint netip.AddrPort
	Left     time.Duration // until the entry ends, if the client makes no new connection
}

// Entries returns the entries that are valid at now, least recently used first.
func (t *Table) Entries(now time.Time) []Entry {
	entries := []Entry{}
	t.each(func(client netip.Addr, e entry) {
		if !t.expired(e, now) {
			entries = append(entries, Entry{Client: client, Endpoint: e.endpoint, Left: t.timeout - now.Sub(e.since)})
		}
	})
	return entries
}

func (t *Table) expired(e entry, now time.Time) bool { return now.Sub(e.since) >= t.timeout }
