package dns

import (
	"net/netip"
	"strings"

	"github.com/miekg/dns"

	"github.com/usherproxy/usher/config"
)

// entry holds the data of one name. The zero value is a name that exists only because there are names below
// it. An entry is immutable.
type entry struct {
	addrs     []netip.Addr
	alias     string // the fully qualified target; "" if it is no alias
	locations []location
	names     []string // for PTR: the names of the address that this name stands for
	text      string
	top       bool // a zone begins here
}

// location is an address or host that serves a port.
type location struct {
	host string // fully qualified
	port uint16
}

// records are the records of one Service in the zone: entries by the labels in front of the Service's name,
// "" for that name itself. They are immutable.
type records struct {
	entries  map[string]entry
	pointers map[string]string // the name of each of its addresses, by the result of reverse
}

// recordsBuilder collects the records of a Service, each once.
type recordsBuilder struct {
	records
	added map[addedRecord]bool
}

// addedRecord is an address or a location of a name.
type addedRecord struct {
	labels string
	addr   netip.Addr
	location
}

// newRecords returns the records of the Service with the given fully qualified name.
func newRecords(name string, d *config.Discovery) records {
	r := recordsBuilder{records{entries: map[string]entry{}, pointers: map[string]string{}}, map[addedRecord]bool{}}
	switch {
	case d.ExternalName != "":
		r.entries[""] = entry{alias: dns.Fqdn(strings.ToLower(d.ExternalName))}
	case len(d.ClusterIPs) > 0:
		for _, a := range d.ClusterIPs {
			r.addAddr("", a)
			r.pointers[reverse(a)] = name
		}
		for _, p := range d.Ports {
			r.addPort(p, name)
		}
	default:
		r.addEndpoints(name, d.Endpoints)
	}
	return r.records
}

// addEndpoints adds the records of a headless Service. Without endpoints it has no records: its name does not
// exist (specification, 2.4.1).
func (r recordsBuilder) addEndpoints(name string, endpoints []config.DiscoveryEndpoint) {
	for _, e := range endpoints {
		host := hostLabel(e)
		r.addAddr("", e.Addr)
		r.addAddr(host, e.Addr)
		r.pointers[reverse(e.Addr)] = host + "." + name
		for _, p := range e.Ports {
			r.addPort(p, host+"."+name)
		}
	}
}

// hostLabel returns the label of an endpoint below its Service: its hostname, or one made from its address.
func hostLabel(e config.DiscoveryEndpoint) string {
	if e.Hostname != "" {
		return strings.ToLower(e.Hostname)
	}
	return strings.NewReplacer(".", "-", ":", "-").Replace(e.Addr.StringExpanded())
}

// reverse returns the name for a reverse lookup of an address, such as 10.0.96.10.in-addr.arpa. (RFC 1035,
// 3.5; for IPv6, RFC 3596, 2.5).
func reverse(a netip.Addr) string {
	name, _ := dns.ReverseAddr(a.String()) // fails only for an invalid address
	return name
}

func (r recordsBuilder) addAddr(labels string, a netip.Addr) {
	e := r.entries[labels]
	if r.isNew(addedRecord{labels: labels, addr: a}) {
		e.addrs = append(e.addrs, a)
	}
	r.entries[labels] = e
}

// addPort adds a port that host serves. A port without a name has no record.
func (r recordsBuilder) addPort(p config.DiscoveryPort, host string) {
	if p.Name == "" {
		return
	}
	protocol := "_" + strings.ToLower(string(p.Protocol))
	labels := "_" + strings.ToLower(p.Name) + "." + protocol
	e := r.entries[labels]
	if l := (location{host, p.Number}); r.isNew(addedRecord{labels: labels, location: l}) {
		e.locations = append(e.locations, l)
	}
	r.entries[labels] = e
	r.entries[protocol] = entry{}
}

// isNew adds a to the added records, and reports whether it was not among them.
func (r recordsBuilder) isNew(a addedRecord) bool {
	is := !r.added[a]
	r.added[a] = true
	return is
}
