package dns

import (
	"slices"
	"sync/atomic"

	"github.com/miekg/dns"
)

// Types and codes that are counted by themselves. All others are counted together,
// as the last, so that no client can make numbers without end.
var (
	countedTypes = [...]uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeCNAME, dns.TypeTXT,
		dns.TypeSOA, dns.TypeNS, dns.TypeMX, dns.TypeHTTPS, dns.TypeANY}
	countedCodes = [...]int{dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeServerFailure, dns.RcodeRefused,
		dns.RcodeFormatError, dns.RcodeNotImplemented}
)

// counts counts answers by the type that was asked for and the code.
type counts [len(countedTypes) + 1][len(countedCodes) + 1]atomic.Int64

func (c *counts) count(reply *dns.Msg) {
	t, code := -1, slices.Index(countedCodes[:], reply.Rcode)
	if len(reply.Question) == 1 {
		t = slices.Index(countedTypes[:], reply.Question[0].Qtype)
	}
	if t < 0 {
		t = len(countedTypes)
	}
	if code < 0 {
		code = len(countedCodes)
	}
	c[t][code].Add(1)
}

// QueryCount is how many queries of a type were answered with a code.
type QueryCount struct {
	Type, Code string // as "AAAA" and "NXDOMAIN"; "other" for all that are not told apart
	Count      int64
}

// Queries returns how many queries were answered, by type and code; those that
// there were.
func (s *Server) Queries() []QueryCount {
	var out []QueryCount
	for t := range s.counts {
		for c := range s.counts[t] {
			n := s.counts[t][c].Load()
			if n == 0 {
				continue
			}
			q := QueryCount{Type: "other", Code: "other", Count: n}
			if t < len(countedTypes) {
				q.Type = dns.TypeToString[countedTypes[t]]
			}
			if c < len(countedCodes) {
				q.Code = dns.RcodeToString[countedCodes[c]]
			}
			out = append(out, q)
		}
	}
	return out
}
