package dns

import (
	"slices"

	"github.com/miekg/dns"
)

// maxUDP is the largest UDP answer, in bytes, even if the client accepts more: it arrives unfragmented on any
// network (dnsflagday.net/2020).
const maxUDP = 1232

// newReply returns an empty answer to query.
func newReply(query *dns.Msg) *dns.Msg {
	reply := new(dns.Msg)
	reply.Id, reply.Response, reply.Opcode = query.Id, true, query.Opcode
	reply.RecursionDesired, reply.CheckingDisabled = query.RecursionDesired, query.CheckingDisabled
	reply.RecursionAvailable = true
	reply.Question = query.Question // unchanged, including upper case
	if opt := query.IsEdns0(); opt != nil {
		reply.SetEdns0(maxUDP, opt.Do())
	}
	return reply
}

// room returns the maximum size, in bytes, of an answer to query over UDP: the size that the client accepts, up to
// maxUDP.
func room(query *dns.Msg) int {
	if opt := query.IsEdns0(); opt != nil {
		return int(min(max(opt.UDPSize(), dns.MinMsgSize), maxUDP))
	}
	return dns.MinMsgSize
}

// pack returns reply as at most limit bytes. It drops the additional section first; if that is not enough, it
// leaves out records and sets the truncated flag, so that the client asks again over TCP.
func pack(reply *dns.Msg, limit int) []byte {
	reply.Compress = true
	if reply.Len() > limit {
		reply.Extra = slices.DeleteFunc(reply.Extra, func(r dns.RR) bool { return r.Header().Rrtype != dns.TypeOPT })
		reply.Truncate(limit)
	}
	raw, err := reply.Pack()
	if err != nil { // an invalid record: it came from another resolver
		failed := refuse(reply, dns.RcodeServerFailure)
		failed.Extra = nil
		raw, _ = failed.Pack() // its question was parsed before
	}
	return raw
}
