package dns

import (
	"slices"

	"github.com/miekg/dns"
)

// maxUDP is the largest UDP answer, in bytes, whatever the client has room for: one
// that arrives in one piece on any network (dnsflagday.net/2020).
const maxUDP = 1232

// newReply returns an answer to query that says nothing yet.
func newReply(query *dns.Msg) *dns.Msg {
	reply := new(dns.Msg)
	reply.Id, reply.Response, reply.Opcode = query.Id, true, query.Opcode
	reply.RecursionDesired, reply.CheckingDisabled = query.RecursionDesired, query.CheckingDisabled
	reply.RecursionAvailable = true
	reply.Question = query.Question // as it was asked, upper case and all
	if opt := query.IsEdns0(); opt != nil {
		reply.SetEdns0(maxUDP, opt.Do())
	}
	return reply
}

// room returns how many bytes of an answer to query the client takes over UDP.
func room(query *dns.Msg) int {
	if opt := query.IsEdns0(); opt != nil {
		return int(min(max(opt.UDPSize(), dns.MinMsgSize), maxUDP))
	}
	return dns.MinMsgSize
}

// pack returns reply as bytes, no more than limit. What is additional goes first;
// if that is not enough, records are left out and the answer says so, so that the
// client asks again over TCP.
func pack(reply *dns.Msg, limit int) []byte {
	reply.Compress = true
	if reply.Len() > limit {
		reply.Extra = slices.DeleteFunc(reply.Extra, func(r dns.RR) bool { return r.Header().Rrtype != dns.TypeOPT })
		reply.Truncate(limit)
	}
	raw, err := reply.Pack()
	if err != nil { // a record that cannot be written: it came from another resolver
		failed := refuse(reply, dns.RcodeServerFailure)
		failed.Extra = nil
		raw, _ = failed.Pack() // its question has been read before
	}
	return raw
}
