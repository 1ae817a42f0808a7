package dns

import (
	"context"
	"slices"

	"github.com/miekg/dns"
)

// exchange is a query with its answer in progress.
type exchange struct {
	query *dns.Msg // nil if the query was refused
	reply *dns.Msg
	ask   string // the name that upstreams must resolve; "" if none
	room  int    // maximum size of the answer over UDP, in bytes
}

// begin reads a query and answers it as far as the zone can. It returns nil if no answer must be sent.
func (s *Server) begin(raw []byte) *exchange {
	query, refusal := parse(raw)
	if query == nil {
		if refusal == nil {
			return nil
		}
		return &exchange{reply: refusal, room: dns.MinMsgSize}
	}
	e := &exchange{query: query, reply: newReply(query), room: room(query)}
	a := s.zone.answer(query.Question[0])
	e.ask = a.ask
	e.reply.Authoritative, e.reply.Rcode = a.own, a.code
	e.reply.Answer, e.reply.Ns = a.found, a.soa
	e.reply.Extra = append(a.extra, e.reply.Extra...)
	return e
}

// waits reports whether upstreams must complete e.
func (e *exchange) waits() bool { return e.ask != "" }

// fail makes the answer a SERVFAIL.
func (e *exchange) fail() { e.reply.Rcode = dns.RcodeServerFailure }

// complete adds the answer of upstreams. The caller holds a slot.
func (s *Server) complete(ctx context.Context, e *exchange) {
	r, err := s.upstreams.ask(ctx, e.forward())
	if err != nil {
		e.fail()
		return
	}
	e.take(r)
}

// take adds an upstream's answer to the reply.
func (e *exchange) take(r *dns.Msg) {
	withoutOPT := slices.DeleteFunc(r.Extra, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT })
	e.reply.Rcode = r.Rcode
	e.reply.Truncated = r.Truncated
	e.reply.AuthenticatedData = r.AuthenticatedData && len(e.reply.Answer) == 0
	e.reply.Answer = append(e.reply.Answer, r.Answer...)
	e.reply.Ns = r.Ns
	e.reply.Extra = append(withoutOPT, e.reply.Extra...)
}

// forward returns the query for upstreams: the client's, for the remaining name, with no option except the
// request for signatures.
func (e *exchange) forward() *dns.Msg {
	m := new(dns.Msg)
	m.Id = dns.Id()
	m.RecursionDesired, m.CheckingDisabled, m.AuthenticatedData = e.query.RecursionDesired, e.query.CheckingDisabled, e.query.AuthenticatedData
	q := e.query.Question[0]
	q.Name = e.ask
	m.Question = []dns.Question{q}
	if opt := e.query.IsEdns0(); opt != nil {
		m.SetEdns0(maxUDP, opt.Do())
	}
	return m
}

// end counts the answer and returns it as at most limit bytes.
func (s *Server) end(e *exchange, limit int) []byte {
	s.counts.count(e.reply)
	return pack(e.reply, limit)
}
