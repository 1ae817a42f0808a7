package dns

import (
	"slices"
	"sync/atomic"

	"github.com/miekg/dns"
)

// Types and codes that are counted separately. All others are counted together, as the last, so that no
// client can create metrics without limit.
var (
	countedTypes = [...]uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeCNAME, dns.TypeTXT,
		dns.TypeSOA, dns.TypeNS, dns.TypeMX, dns.TypeHTTPS, dns.TypeANY}
	countedCodes = [...]int{dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeServerFailure, dns.RcodeRefused,
		dns.RcodeFormatError, dns.RcodeNotImplemented}
)

// counts counts answers by query type and code.
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

// Queries returns the number of answered queries, by type and code, such as "AAAA" and "NXDOMAIN", without
// zeros. "other" stands for all that are not counted separately.
func (s *Server) Queries() map[[2]string]int64 {
	out := map[[2]string]int64{}
	for t := range s.counts {
		for c := range s.counts[t] {
			n := s.counts[t][c].Load()
			if n == 0 {
				continue
			}
			of := [2]string{"other", "other"}
			if t < len(countedTypes) {
				of[0] = dns.TypeToString[countedTypes[t]]
			}
			if c < len(countedCodes) {
				of[1] = dns.RcodeToString[countedCodes[c]]
			}
			out[of] = n
		}
	}
	return out
}
