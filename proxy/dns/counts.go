package dns

import (
	"maps"
	"slices"
	"sync"

	"github.com/miekg/dns"
)

// Types and codes that are counted separately. All others are counted together, so that no client can create
// metrics without limit.
var (
	countedTypes = []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeCNAME, dns.TypeTXT,
		dns.TypeSOA, dns.TypeNS, dns.TypeMX, dns.TypeHTTPS, dns.TypeANY}
	countedCodes = []int{dns.RcodeSuccess, dns.RcodeNameError, dns.RcodeServerFailure, dns.RcodeRefused,
		dns.RcodeFormatError, dns.RcodeNotImplemented}
)

// counts counts answers by query type and code.
type counts struct {
	mu sync.Mutex
	of map[[2]string]int64
}

func (c *counts) count(reply *dns.Msg) {
	of := [2]string{"other", "other"}
	if len(reply.Question) == 1 && slices.Contains(countedTypes, reply.Question[0].Qtype) {
		of[0] = dns.TypeToString[reply.Question[0].Qtype]
	}
	if slices.Contains(countedCodes, reply.Rcode) {
		of[1] = dns.RcodeToString[reply.Rcode]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of[of]++
}

// Queries returns the number of answered queries, by type and code, such as "AAAA" and "NXDOMAIN". "other"
// stands for all that are not counted separately.
func (s *Server) Queries() map[[2]string]int64 {
	s.counts.mu.Lock()
	defer s.counts.mu.Unlock()
	return maps.Clone(s.counts.of)
}
