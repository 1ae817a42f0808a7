package dns

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
)

// schemaVersion is the version of the specification that the zone implements (2.2).
const schemaVersion = "1.1.0"

// zone holds the cluster's DNS data: the names in its domain, and the names of its Services' addresses.
type zone struct {
	domain string // fully qualified, in lower case

	mu         sync.RWMutex // guards the fields below
	complete   bool         // set after the initial sync
	serial     uint32       // of the zone: the time of its last change, in seconds
	services   map[types.NamespacedName]records
	namespaces map[string]int      // number of Services in each
	pointers   map[string][]string // the names of each address, by the result of reverse
}

func newZone(domain string) *zone {
	return &zone{
		domain:     domain,
		services:   map[types.NamespacedName]records{},
		namespaces: map[string]int{},
		pointers:   map[string][]string{},
	}
}

// apply replaces the zone's data of the given Services.
func (z *zone) apply(services []config.Service, now time.Time) {
	type change struct {
		name types.NamespacedName
		records
	}
	changes := make([]change, len(services))
	for i, s := range services {
		changes[i].name = s.Name
		if s.Discovery != nil {
			changes[i].records = newRecords(z.name(s.Name), s.Discovery)
		}
	}

	z.mu.Lock()
	defer z.mu.Unlock()
	z.complete = true
	z.serial = max(z.serial+1, uint32(now.Unix()))
	for _, c := range changes {
		z.remove(c.name)
		if c.entries != nil {
			z.add(c.name, c.records)
		}
	}
}

// name returns the fully qualified name of a Service.
func (z *zone) name(n types.NamespacedName) string {
	return strings.ToLower(n.Name+"."+n.Namespace) + ".svc." + z.domain
}

func (z *zone) add(name types.NamespacedName, r records) {
	z.services[name] = r
	z.namespaces[name.Namespace]++
	for a, pointer := range r.pointers {
		// Append to a copy: readers may still use the old list.
		z.pointers[a] = append(slices.Clip(z.pointers[a]), pointer)
	}
}

func (z *zone) remove(name types.NamespacedName) {
	r, known := z.services[name]
	if !known {
		return
	}
	delete(z.services, name)
	if z.namespaces[name.Namespace]--; z.namespaces[name.Namespace] == 0 {
		delete(z.namespaces, name.Namespace)
	}
	for a, pointer := range r.pointers {
		left := slices.DeleteFunc(slices.Clone(z.pointers[a]), func(p string) bool { return p == pointer })
		if z.pointers[a] = left; len(left) == 0 {
			delete(z.pointers, a)
		}
	}
}

// found is a zone's data about a name.
type found struct {
	entry
	exists bool   // false: there is no such name
	zone   string // the name at which its zone begins
	serial uint32
}

// find returns the data of name, which is in lower case and fully qualified. mine is false if the name is
// outside of the zone. complete is false before the initial sync.
func (z *zone) find(name string) (f found, mine, complete bool) {
	z.mu.RLock()
	defer z.mu.RUnlock()
	f = found{zone: z.domain, serial: z.serial}
	if dns.IsSubDomain(z.domain, name) {
		labels := dns.SplitDomainName(name)
		f.entry, f.exists = z.below(labels[:len(labels)-dns.CountLabel(z.domain)])
		return f, true, z.complete
	}
	names := z.pointers[name]
	if len(names) == 0 {
		return f, false, z.complete
	}
	f.entry, f.exists, f.zone = entry{names: names, top: true}, true, name
	return f, true, z.complete
}

// below returns the data of the name that these labels form in front of the domain.
func (z *zone) below(labels []string) (e entry, exists bool) {
	n := len(labels)
	switch {
	case n == 0:
		return entry{top: true}, true
	case n == 1:
		switch labels[0] {
		case "dns-version":
			return entry{text: schemaVersion}, true
		case "svc", "pod":
			return entry{}, true
		}
	case labels[n-1] == "pod":
		return pod(labels[:n-1])
	case labels[n-1] == "svc" && n == 2:
		return entry{}, z.namespaces[labels[0]] > 0
	case labels[n-1] == "svc":
		name := types.NamespacedName{Namespace: labels[n-2], Name: labels[n-3]}
		e, exists = z.services[name].entries[strings.Join(labels[:n-3], ".")]
		return e, exists
	}
	return entry{}, false
}

// pod returns the data of a name such as 10-1-0-7.default.pod: the address that it contains (2.6, deprecated
// and required). It does not check whether the Namespace or Pod exists.
func pod(labels []string) (e entry, exists bool) {
	if len(labels) == 1 {
		return entry{}, true
	}
	if len(labels) > 2 {
		return entry{}, false
	}
	for _, separator := range []string{".", ":"} {
		if a, err := netip.ParseAddr(strings.ReplaceAll(labels[0], "-", separator)); err == nil && a.Zone() == "" {
			return entry{addrs: []netip.Addr{a}}, true
		}
	}
	return entry{}, false
}
