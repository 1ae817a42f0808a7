package dns

import "github.com/miekg/dns"

// refused holds the query types that are not data of a name: zone transfers, obsolete mail queries, and types that
// belong to a message (RFC 6895, 3.1).
var refused = map[uint16]bool{
	dns.TypeAXFR: true, dns.TypeIXFR: true, dns.TypeMAILA: true, dns.TypeMAILB: true,
	dns.TypeOPT: true, dns.TypeTSIG: true, dns.TypeTKEY: true, dns.TypeNone: true,
}

// headerSize is the size of a message's header (RFC 1035, 4.1.1).
const headerSize = 12

// parse reads a query. If the zone or an upstream can answer it, refusal is nil; otherwise refusal is the answer.
// Both are nil if the Server must not answer: raw is a response, or too short for a header.
func parse(raw []byte) (query, refusal *dns.Msg) {
	if len(raw) < headerSize {
		return nil, nil
	}
	query = new(dns.Msg)
	err := query.Unpack(raw)
	switch {
	case query.Response:
		return nil, nil
	case query.Opcode != dns.OpcodeQuery:
		return nil, refuse(query, dns.RcodeNotImplemented)
	case err != nil || len(query.Question) != 1 || len(query.Answer) > 0 || len(query.Ns) > 0:
		return nil, refuse(query, dns.RcodeFormatError)
	}
	if opt := query.IsEdns0(); opt != nil && opt.Version() != 0 {
		return nil, refuse(query, dns.RcodeBadVers) // RFC 6891, 6.1.3
	}
	if q := query.Question[0]; q.Qclass != dns.ClassINET || refused[q.Qtype] {
		return nil, refuse(query, dns.RcodeRefused)
	}
	return query, nil
}

// refuse returns an answer to query that consists of a code only.
func refuse(query *dns.Msg, code int) *dns.Msg {
	reply := newReply(query)
	if len(reply.Question) > 1 {
		reply.Question = nil
	}
	reply.Rcode = code
	return reply
}
