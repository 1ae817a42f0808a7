package kernel

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink/nl"

	"github.com/usherproxy/usher/portal"
)

// FuzzParseFlow parses possible messages of the kernel. A request is among them: it has the form of a response,
// except for the name of its tuple.
func FuzzParseFlow(f *testing.F) {
	request := flowRequest(nil, 7, portal.UDP, nl.CTA_TUPLE_REPLY, netip.MustParseAddrPort("10.0.0.1:53"), netip.MustParseAddrPort("192.0.2.1:4000"))
	f.Add(request)
	answer := append([]byte(nil), request...)
	answer[22] = 1 // CTA_TUPLE_ORIG
	f.Add(answer)
	f.Add(flowRequest(nil, 8, portal.UDP, nl.CTA_TUPLE_REPLY, netip.MustParseAddrPort("[fd00::1]:53"), netip.MustParseAddrPort("[2001:db8::1]:4000")))
	f.Fuzz(func(t *testing.T, b []byte) {
		dst, _, err := parseFlow(b, nl.CTA_TUPLE_ORIG)
		if err == nil && !dst.IsValid() {
			t.Error("neither a destination nor an error")
		}
	})
}

func TestParseFlowReadsTheOriginalDestination(t *testing.T) {
	b := flowRequest(nil, 7, portal.UDP, nl.CTA_TUPLE_REPLY, netip.MustParseAddrPort("10.0.0.1:53"), netip.MustParseAddrPort("192.0.2.1:4000"))
	b[22] = 1 // CTA_TUPLE_ORIG instead of CTA_TUPLE_REPLY
	dst, seq, err := parseFlow(b, nl.CTA_TUPLE_ORIG)
	if err != nil || seq != 7 || dst != netip.MustParseAddrPort("192.0.2.1:4000") {
		t.Errorf("%v, %d, %v", dst, seq, err)
	}
}
