package dns

import (
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/miekg/dns"
)

// ttl is how long clients may cache an answer, in seconds.
const ttl = 5

// maxAliases is the maximum length of a chain of ExternalName Services.
const maxAliases = 8

// weight is that of every SRV record: all locations are equal.
const weight = 100

// answer is a zone's answer to a question.
type answer struct {
	code  int
	own   bool   // the zone is responsible for the name in the question
	ask   string // an external name that upstreams must resolve for the missing data; "" if there is none
	found []dns.RR
	soa   []dns.RR // of the zone, if there is no such name or no such data (RFC 2308, 2)
	extra []dns.RR // records that the client will probably request next
}

// answer answers q as far as the zone can. It follows ExternalName Services until it finds another kind of Service,
// or an external name.
func (z *zone) answer(q dns.Question) answer {
	a := answer{}
	owner, name := q.Name, dns.CanonicalName(q.Name)
	for range maxAliases {
		f, mine, complete := z.find(name)
		a.own = a.own || mine
		switch {
		case !mine:
			a.ask = owner
			return a
		case !complete:
			a.code = dns.RcodeServerFailure
			return a
		case !f.exists:
			a.code, a.soa = dns.RcodeNameError, z.soa(f)
			return a
		case f.alias != "":
			a.found = append(a.found, &dns.CNAME{Hdr: z.header(owner, dns.TypeCNAME), Target: f.alias})
			if q.Qtype == dns.TypeCNAME || q.Qtype == dns.TypeANY {
				return a
			}
			owner, name = f.alias, f.alias
			continue
		}
		data := z.data(owner, f, q.Qtype)
		if len(data) == 0 {
			a.soa = z.soa(f)
		}
		a.found, a.extra = append(a.found, data...), z.extra(data)
		return a
	}
	a.code = dns.RcodeServerFailure // a loop
	return a
}

// data returns f's records of type kind in random order, so that clients that use only the first record are spread
// over all of them.
func (z *zone) data(owner string, f found, kind uint16) (out []dns.RR) {
	wanted := func(t uint16) bool { return kind == t || kind == dns.TypeANY }
	for _, a := range f.addrs {
		if rr := z.address(owner, a); wanted(rr.Header().Rrtype) {
			out = append(out, rr)
		}
	}
	if wanted(dns.TypeSRV) {
		for _, l := range f.locations {
			out = append(out, &dns.SRV{Hdr: z.header(owner, dns.TypeSRV), Weight: weight, Port: l.port, Target: l.host})
		}
	}
	if wanted(dns.TypePTR) {
		for _, n := range f.names {
			out = append(out, &dns.PTR{Hdr: z.header(owner, dns.TypePTR), Ptr: n})
		}
	}
	if wanted(dns.TypeTXT) && f.text != "" {
		out = append(out, &dns.TXT{Hdr: z.header(owner, dns.TypeTXT), Txt: []string{f.text}})
	}
	if wanted(dns.TypeSOA) && f.top {
		out = append(out, z.soa(f)...)
	}
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// address returns the A or AAAA record of a.
func (z *zone) address(owner string, a netip.Addr) dns.RR {
	if a.Is4() {
		return &dns.A{Hdr: z.header(owner, dns.TypeA), A: a.AsSlice()}
	}
	return &dns.AAAA{Hdr: z.header(owner, dns.TypeAAAA), AAAA: a.AsSlice()}
}

// extra returns the address records of the hosts in the SRV records of data.
func (z *zone) extra(data []dns.RR) (out []dns.RR) {
	var hosts []string
	for _, rr := range data {
		if srv, ok := rr.(*dns.SRV); ok {
			hosts = append(hosts, srv.Target)
		}
	}
	slices.Sort(hosts)
	for _, host := range slices.Compact(hosts) {
		f, _, _ := z.find(host)
		for _, a := range f.addrs {
			out = append(out, z.address(host, a))
		}
	}
	return out
}

// soa returns the record that names the start of f's zone, and how long negative answers may be cached.
func (z *zone) soa(f found) []dns.RR {
	header := z.header(f.zone, dns.TypeSOA)
	return []dns.RR{&dns.SOA{
		Hdr:    header,
		Ns:     "ns.dns." + z.domain,
		Mbox:   "hostmaster." + z.domain,
		Serial: f.serial,
		// For secondary servers, which do not exist.
		Refresh: 7200, Retry: 1800, Expire: 86400,
		Minttl: ttl,
	}}
}

func (z *zone) header(owner string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: owner, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}
