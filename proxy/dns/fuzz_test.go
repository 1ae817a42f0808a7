package dns

import (
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
)

// fuzzed is a Server with one Service of each kind and no upstream.
func fuzzed(tb testing.TB) *Server {
	s, err := New(Options{ResolvConf: "/none"})
	if err != nil {
		tb.Fatal(err)
	}
	port := []config.DiscoveryPort{{Name: "http", Protocol: config.TCP, Number: 80}}
	service := func(name string, d config.Discovery) config.Service {
		d.Ports = port
		return config.Service{Name: types.NamespacedName{Namespace: "a", Name: name}, Discovery: &d}
	}
	s.zone.apply([]config.Service{
		service("web", config.Discovery{ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}}),
		service("db", config.Discovery{Endpoints: []config.DiscoveryEndpoint{{Addr: netip.MustParseAddr("fd00::1"), Ports: port}}}),
		service("out", config.Discovery{ExternalName: "example.com"}),
	}, time.Unix(0, 0))
	return s
}

func packed(tb testing.TB, m *dns.Msg) []byte {
	raw, err := m.Pack()
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

// FuzzQuery sends any bytes that a client may send. The reply must be a message that answers the query and fits.
func FuzzQuery(f *testing.F) {
	s := fuzzed(f)
	for _, name := range []string{"web.a.svc.cluster.local.", "_http._tcp.db.a.svc.cluster.local.", "out.a.svc.cluster.local.",
		"1.0.96.10.in-addr.arpa.", "10-1-2-3.a.pod.cluster.local.", "example.com.", "."} {
		m := new(dns.Msg).SetQuestion(name, dns.TypeANY)
		f.Add(packed(f, m))
		f.Add(packed(f, m.SetEdns0(600, true)))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		e := s.begin(raw)
		if e == nil {
			return
		}
		check(t, raw, s.end(e, e.room), e.room)
	})
}

// FuzzUpstream receives any bytes that a resolver may send.
func FuzzUpstream(f *testing.F) {
	s := fuzzed(f)
	query := packed(f, new(dns.Msg).SetQuestion("out.a.svc.cluster.local.", dns.TypeANY).SetEdns0(1232, false))
	plain := packed(f, new(dns.Msg).SetQuestion("example.com.", dns.TypeA))
	answer := new(dns.Msg).SetQuestion("example.com.", dns.TypeA)
	for _, text := range []string{"example.com. 5 IN A 192.0.2.1", `example.com. 5 IN TXT "a" "b"`, "example.com. 5 IN HTTPS 1 . alpn=h2"} {
		rr, err := dns.NewRR(text)
		if err != nil {
			f.Fatal(err)
		}
		answer.Answer = append(answer.Answer, rr)
	}
	f.Add(packed(f, answer))
	f.Add(packed(f, answer.SetEdns0(1232, true)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, query := range [][]byte{query, plain} {
			r := new(dns.Msg)
			if r.Unpack(raw) != nil {
				return
			}
			e := s.begin(query)
			e.take(r)
			check(t, query, s.end(e, e.room), e.room)
		}
	})
}

// check expects that reply is a message that answers query and has at most limit bytes.
func check(t *testing.T, query, reply []byte, limit int) {
	m := new(dns.Msg)
	switch err := m.Unpack(reply); {
	case err != nil:
		t.Fatalf("the answer %x is no message: %v", reply, err)
	case !m.Response || reply[0] != query[0] || reply[1] != query[1]:
		t.Fatalf("the answer %v is none to %x", m, query)
	case len(reply) > limit:
		t.Fatalf("the answer has %d bytes; the client takes %d", len(reply), limit)
	}
}
